// Finds the tasks of a CTA: whole ones in the order of Schedule (tiles.h), or the pieces of its
// slice of the line of all tasks (prefill_line.h).
#pragma once
#include <bit>
#include <climits>

#include "src/attention/cuda/sm90/shared.cuh"
#include "src/core/round.h"

namespace intarsia::attention::sm90 {

// Numbers the row tiles of 32 sequences, a lane each, by where they end in the keys: under a causal
// mask the longest come first, and CTAs that take turns get equal work.
struct LongestFirst {
  static constexpr bool kSums = false;
  const LaunchPlan& plan;

  // How many of `own` tiles, from the last one on, end at `key` or behind it.
  __device__ __forceinline__ int From(int key, int len_k, int own) const {
    if (len_k < key) return 0;
    return min(own, static_cast<int>(plan.token_tile.Divide(len_k - key)) + 1);
  }
  __device__ __forceinline__ LaneItem operator()(const Sequence& sequence, int index, int own,
                                                 int) const {
    const int len_k = sequence.len_k;
    if (const uint32_t owners = __ballot_sync(0xffffffffu, own > 0); std::has_single_bit(owners))
      return {__ffs(owners) - 1, index};
    const int first = len_k - (own - 1) * plan.tokens_per_tile;
    int low = __reduce_min_sync(0xffffffffu, own ? first : INT_MAX);
    int high = __reduce_max_sync(0xffffffffu, own ? len_k : INT_MIN);
    while (low < high) {  // the largest key with more than `index` tiles
      const int middle = high - static_cast<int>((static_cast<uint32_t>(high) - low) / 2);
      if (__reduce_add_sync(0xffffffffu, From(middle, len_k, own)) > index)
        low = middle;
      else
        high = middle - 1;
    }
    const int through = From(low, len_k, own), before = From(low + 1, len_k, own);
    const int rank = index - __reduce_add_sync(0xffffffffu, before);
    const uint32_t there = __ballot_sync(0xffffffffu, through > before);
    const uint32_t earlier = there & ((1u << threadIdx.x % 32) - 1);
    const int lane =
        __ffs(__ballot_sync(0xffffffffu, through > before && __popc(earlier) == rank)) - 1;
    return {lane, __shfl_sync(0xffffffffu, before, lane)};
  }
};

// Whether a sequence's tasks are of few rows.
__device__ __forceinline__ bool IsFew(const LaunchPlan& plan, const Sequence& sequence) {
  return sequence.tokens.size() * plan.group <= plan.few_rows;
}

// A sequence's share of the line.
__device__ __forceinline__ LineTasks LineTasksOfSequence(const LaunchPlan& plan,
                                                         const Sequence& sequence) {
  return LineTasksOf(sequence.tokens.size(), sequence.len_k, plan.window_left, plan.window_right,
                     plan.tokens_per_tile, plan.token_tile, IsFew(plan, sequence));
}

// The sum of numbers in [0, 2^30] of a warp's lanes.
__device__ __forceinline__ int64_t SumOfLanes(int x) {
  const int64_t high = __reduce_add_sync(0xffffffffu, x >> 16);
  return (high << 16) + __reduce_add_sync(0xffffffffu, x & 0xffff);
}

// Finds the CTA's slice of the line of all tasks, if there is to be one (prefill_line.h); a warp
// together. The line is the same in all CTAs.
//
// Like all of the finder's code it runs once, or a few times, in one warp, which takes some 5
// cycles an instruction: so it is short, has no loops unrolled, and no 64-bit divisions.
__device__ __forceinline__ void FindSlice(const LaunchPlan& plan, const LaneSequences& first,
                                          OwnSlice& slice) {
  const int number = static_cast<int>(blockIdx.x), lane = threadIdx.x % 32;
  if (lane < PieceRoom::kPlaces) plan.pieces.RecordAt(number, lane) = {};
  int64_t head = 0;
  int longest = 0, long_tasks = 0;
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    LaneSequences sequences = first;
    do {
      const LineTasks tasks = LineTasksOfSequence(plan, sequences.own());
      if (tasks.count == 0) continue;
      if (pass == 1) {  // those that cost nearly as much as the longest
        long_tasks += tasks.CountFrom(longest / 4 * 3, plan.token_tile);
      } else {
        head += tasks.total();
        longest = max(longest, tasks.CostOf(tasks.count - 1));
      }
    } while (sequences.Next());
    if (pass == 1) break;
    head = SumOfLanes(static_cast<int>(min(head, kMaxHeadLine)));
    longest = __reduce_max_sync(0xffffffffu, longest);
  }
  long_tasks = __reduce_add_sync(0xffffffffu, long_tasks);
  const Line line =
      DrawLine(head, plan.schedule.num_kv_heads, longest, long_tasks, static_cast<int>(gridDim.x));
  if (lane == 0) slice = OwnSlice(line, number);
}

// Finds the tasks of a CTA; a warp together.
template <class S>
class TaskFinder {
 public:
  __device__ TaskFinder(const Params& p, const LaunchPlan& plan, FinderState& state)
      : p_(p), plan_(plan), state_(state), schedule_(plan.schedule) {}

  // Before the first Find.
  __device__ __forceinline__ void Begin(const LaneSequences& first) {
    const int64_t layer = p_.cache.layer ? *p_.cache.layer : 0;
    layer_exists_ = layer >= 0 && layer < p_.cache.num_layers;
    if (threadIdx.x % 32 == 0) state_.order = {};
    __syncwarp();
    if (plan_.sharing.ctas) taken_keys_ = TakenKeys(p_, first, plan_.sharing);
    if (plan_.has_sections) SetSections(first);
    if (p_.num_seqs > 1) SetOrder(first);
  }

  // Writes the task of a round to shared memory, all lanes the same; false if the CTA has none.
  // first(): the first 32 sequences.
  template <class First>
  __device__ __forceinline__ bool Find(int round, bool cuts, First first, Task& task) {
    return cuts ? FindPiece(first, task) : FindWhole(round, first, task);
  }
  // The same where tasks are whole.
  template <class First>
  __device__ __forceinline__ bool FindWhole(int round, First first, Task& task) const {
    const Schedule::Task place = schedule_.At(round, static_cast<int>(gridDim.x),
                                              static_cast<int>(blockIdx.x), state_.order);
    task.kind = Task::kEnd;
    if (place.kind != Schedule::Task::kTask) return place.kind == Schedule::Task::kEnd;
    task.kv_head = place.kv_head;
    const OwnedItem found = FindItem(
        first(), place.row_tile, [&](const Sequence& sequence) { return CountOf(sequence); },
        LongestFirst{plan_});
    if (!found.exists) {
      const int heads = schedule_.num_kv_heads;
      const int spare_tiles = schedule_.row_tiles - place.row_tile + found.beyond;
      task.kind = Task::kPadding;
      task.padding = {FirstToken(p_), found.end};
      task.first = found.beyond * heads + place.kv_head;
      task.step = spare_tiles * heads;
      return plan_.fill_padding;
    }
    task.keys = SetRows(task, found.sequence, found.count - 1 - found.number);
    return true;
  }
  // Whether tasks are cut; known when the warp that finds it is done.
  __device__ __forceinline__ bool Cuts() const { return state_.slice.line.slices > 0; }

 private:
  __device__ __forceinline__ void SetSections(const LaneSequences& first) {
    float keys = 0.0f;  // of all sequences with row tiles
    LaneSequences sequences = first;
    do {
      if (CountOf(sequences.own())) keys += static_cast<float>(sequences.own().len_k);
    } while (sequences.Next());
#pragma unroll 1
    for (int distance = 16; distance > 0; distance /= 2)
      keys += __shfl_xor_sync(0xffffffffu, keys, distance);
    constexpr float kRowBytes = (S::kD + S::kDv) * S::kCopiedBytes;
    const auto ctas = static_cast<int>(gridDim.x);
    schedule_.SetSections(SectionHeads(schedule_, ctas, keys * kRowBytes, plan_.section_bytes),
                          ctas);
  }

  // RoundOrder, where there are sequences of few rows and of more.
  __device__ __forceinline__ void SetOrder(const LaneSequences& first) {
    int many = 0, few = 0;  // row tiles of such sequences
    LaneSequences sequences = first;
    do {
      const int count = CountOf(sequences.own());
      (IsFew(plan_, sequences.own()) ? few : many) += count;
    } while (sequences.Next());
    many = __reduce_add_sync(0xffffffffu, many);
    few = __reduce_add_sync(0xffffffffu, few);
    if (many == 0 || few == 0) return;
    const auto ctas = static_cast<int>(gridDim.x), cta = static_cast<int>(blockIdx.x);
    const int rounds = ((many + few) * schedule_.section_heads + ctas - 1) / ctas;
    if (threadIdx.x % 32 == 0) state_.order = RoundOrder(rounds, ctas, cta);
    __syncwarp();
  }

  // A row tile of a sequence, but for its keys, which it returns.
  __device__ __forceinline__ KeyTiles SetRows(Task& task, const Sequence& sequence,
                                              int row_tile) const {
    task.kind = Task::kRows;
    task.sequence = sequence;
    const int first_token = row_tile * plan_.tokens_per_tile;
    task.first_token = first_token;
    const Band band = BandOf(sequence, plan_);
    const int last = min(first_token + plan_.tokens_per_tile, sequence.tokens.size()) - 1;
    // What some of the tile's tokens see, and what all do.
    const Range some{band.BeginOf(first_token), band.EndOf(last, sequence.len_k)};
    const Range all{band.BeginOf(last), band.EndOf(first_token, sequence.len_k)};
    task.first_visible = some.begin;
    task.few = IsFew(plan_, sequence);
    task.alone = sequence.tokens.size() <= plan_.tokens_per_tile;
    task.piece_place = -1;
    task.clear = ClearTilesOf(all.begin, all.end, S::kTileKeys);
    return TilesOf(some.begin, layer_exists_ ? some.end : some.begin,
                   p_.paged ? sequence.k_begin : 0, S::kTileKeys);
  }

  // The next piece of this CTA's slice; behind them its share of the padding.
  template <class First>
  __device__ __forceinline__ bool FindPiece(First first, Task& task) {
    while (state_.slice.left > 0) {
      const int at = state_.slice.at, left = state_.slice.left, kv_head = state_.slice.kv_head;
      const OwnedItem found = FindItem(first(), at, [&](const Sequence& sequence) {
        return static_cast<int>(LineTasksOfSequence(plan_, sequence).total());
      });
      const Sequence& sequence = found.sequence;
      const LineTasks tasks = LineTasksOfSequence(plan_, sequence);
      const int row_tile = tasks.At(found.number), cost = tasks.CostOf(row_tile);
      // Of the position in the task, and of the slice's beginning.
      const int position = found.number - static_cast<int>(tasks.Before(row_tile));
      const int passed = position - (state_.slice.line.payload - state_.slice.skipped - left);
      __syncwarp();  // all lanes have read the slice
      state_.slice.Advance(at, left, kv_head, cost - position);
      task.kv_head = kv_head;
      const KeyTiles keys = SetRows(task, sequence, row_tile);
      task.keys = keys;
      __syncwarp();
      if (keys.count == 0) {
        if (passed > 0) continue;
        return true;
      }
      const LinePiece piece = PieceOf(state_.slice.line.payload, static_cast<int>(blockIdx.x),
                                      passed, cost, keys.count);
      // Between two others even a piece without tiles leaves a record (combine.cuh).
      const bool between = piece.begin > 0 && piece.end < keys.count;
      if (piece.count > 1 && (between || piece.begin < piece.end)) SetPiece(task, keys, piece);
      if (piece.begin < piece.end) return true;
    }
    task.kind = Task::kEnd;
    if (filled_ || !plan_.fill_padding) return true;
    filled_ = true;
    LaneSequences sequences = first();
    while (sequences.Next()) {
    }
    task.kind = Task::kPadding;
    task.padding = {FirstToken(p_), sequences.end()};
    task.first = static_cast<int>(blockIdx.x);
    task.step = static_cast<int>(gridDim.x);
    return true;
  }

  // Of a task's keys those of a piece, and what the piece leaves for CombinePieces.
  __device__ __forceinline__ void SetPiece(Task& task, const KeyTiles& keys,
                                           const LinePiece& piece) const {
    const int slice = static_cast<int>(blockIdx.x), place = PlaceOfPiece(piece.begin == 0);
    task.keys = {keys.last_key - (keys.count - piece.end) * S::kTileKeys, piece.end - piece.begin};
    task.piece_place = place;
    if (threadIdx.x % 32) return;
    const int tokens = min(plan_.tokens_per_tile, task.sequence.tokens.size() - task.first_token);
    plan_.pieces.RecordAt(slice, place) = {
        piece.count,          piece.first_slice, task.sequence.tokens.begin + task.first_token,
        tokens * plan_.group, task.kv_head,      piece.end - piece.begin};
  }

  // Row tiles of a sequence.
  __device__ __forceinline__ int CountOf(const Sequence& sequence) const {
    const int tokens = sequence.tokens.size();
    if (tokens == 0) return 0;
    if (int64_t{tokens} * plan_.group < plan_.min_packed_rows && sequence.len_k > taken_keys_)
      return 0;
    return static_cast<int>(plan_.token_tile.Divide(tokens - 1)) + 1;
  }

  const Params& p_;
  const LaunchPlan& plan_;
  FinderState& state_;
  Schedule schedule_;
  int taken_keys_ = -1;
  bool layer_exists_ = false;
  bool filled_ = false;  // whether the CTA's padding is
};

}  // namespace intarsia::attention::sm90
