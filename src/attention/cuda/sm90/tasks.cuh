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
  const LaunchPlan& plan;
  const int& len_k;  // of the lane's sequence

  // How many of the lane's tiles, from its last one on, end at `key` or behind it.
  __device__ __forceinline__ int From(int key, int own) const {
    if (len_k < key) return 0;
    return min(own, static_cast<int>(plan.token_tile.Divide(len_k - key)) + 1);
  }
  __device__ __forceinline__ LaneItem operator()(int index, int own, int) const {
    if (const uint32_t owners = __ballot_sync(0xffffffffu, own > 0); std::has_single_bit(owners))
      return {__ffs(owners) - 1, index};
    const int first = len_k - (own - 1) * plan.tokens_per_tile;
    int low = __reduce_min_sync(0xffffffffu, own ? first : INT_MAX);
    int high = __reduce_max_sync(0xffffffffu, own ? len_k : INT_MIN);
    while (low < high) {  // the largest key with more than `index` tiles
      const int middle = high - static_cast<int>((static_cast<uint32_t>(high) - low) / 2);
      if (__reduce_add_sync(0xffffffffu, From(middle, own)) > index)
        low = middle;
      else
        high = middle - 1;
    }
    const int through = From(low, own), before = From(low + 1, own);
    const int rank = index - __reduce_add_sync(0xffffffffu, before);
    const uint32_t there = __ballot_sync(0xffffffffu, through > before);
    const uint32_t earlier = there & ((1u << threadIdx.x % 32) - 1);
    const int lane =
        __ffs(__ballot_sync(0xffffffffu, through > before && __popc(earlier) == rank)) - 1;
    return {lane, __shfl_sync(0xffffffffu, before, lane)};
  }
};

// A sequence's share of the line.
__device__ __forceinline__ LineTasks LineTasksOfLane(const Params& p, const LaunchPlan& plan,
                                                     const Range& tokens, int len_k) {
  const int size = tokens.size();
  return LineTasksOf(size, len_k, p.window_left, p.window_right, plan.tokens_per_tile,
                     size * plan.group <= kFewRows);
}

// Finds the CTA's slice of the line of all tasks, if there is to be one (prefill_line.h); a warp
// together, before it gives up its registers. The line is the same in all CTAs.
__device__ __forceinline__ void FindSlice(const Params& p, const LaunchPlan& plan,
                                          OwnSlice& slice) {
  const int number = static_cast<int>(blockIdx.x);
  if (threadIdx.x % 32 == 0) {
    for (int place = 0; place < PieceRoom::kPlaces; ++place)
      plan.pieces.RecordAt(number, place) = {};
  }
  int64_t head = 0, longest = 0, long_tasks = 0;
  const auto each = [&](auto look) {
    FindItem(p, INT_MAX, [&](int seq, const Range& tokens, int key_begin) {
      const int len_k = SequenceAt(p, seq, tokens.begin, key_begin).len_k;
      const LineTasks tasks = LineTasksOfLane(p, plan, tokens, len_k);
      if (tasks.count > 0) look(tasks);
      return 0;
    });
  };
  each([&](const LineTasks& tasks) {
    head += tasks.total();
    const int64_t own = tasks.CostOf(tasks.count - 1);
    if (own > longest) longest = own;
  });
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    head += __shfl_xor_sync(0xffffffffu, head, distance);
    const int64_t other = __shfl_xor_sync(0xffffffffu, longest, distance);
    if (other > longest) longest = other;
  }
  each([&](const LineTasks& tasks) { long_tasks += tasks.CountFrom(longest * 3 / 4); });
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    long_tasks += __shfl_xor_sync(0xffffffffu, long_tasks, distance);
  const Line line =
      DrawLine(head, plan.schedule.num_kv_heads, longest, long_tasks, static_cast<int>(gridDim.x));
  OwnSlice own{line};
  if (line.slices > 0) {
    const int64_t begin = int64_t{number} * line.payload, rest = head * line.num_heads - begin;
    own.kv_head = static_cast<int>(begin / head);
    own.at = static_cast<int>(begin - own.kv_head * head);
    own.left = rest <= 0 ? 0 : rest < line.payload ? static_cast<int>(rest) : line.payload;
    own.skipped = line.payload - own.left;
  }
  if (threadIdx.x % 32 == 0) slice = own;
  __syncwarp();
}

// Finds the tasks of a CTA; a warp together.
template <class S>
class TaskFinder {
 public:
  __device__ TaskFinder(const Params& p, const LaunchPlan& plan, OwnSlice& slice)
      : p_(p), plan_(plan), slice_(slice), schedule_(plan.schedule) {
    if (plan.sharing.ctas) taken_keys_ = TakenKeys(p, plan.sharing);
    if (!plan.has_sections) return;
    float keys = 0.0f;  // of all sequences with row tiles
    FindItem(p, INT_MAX, [&](int seq, const Range& tokens, int key_begin) {
      int len_k = 0;
      if (CountOf(seq, tokens, key_begin, len_k)) keys += static_cast<float>(len_k);
      return 0;
    });
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      keys += __shfl_xor_sync(0xffffffffu, keys, distance);
    constexpr float kRowBytes = (S::kD + S::kDv) * S::kCopiedBytes;
    schedule_.section_heads =
        SectionHeads(schedule_, static_cast<int>(gridDim.x), keys * kRowBytes, plan.section_bytes);
  }

  // Writes the task of a round to shared memory, all lanes the same; false if the CTA has none.
  __device__ __forceinline__ bool Find(int round, Task& task) {
    return slice_.line.slices > 0 ? FindPiece(task) : FindWhole(round, task);
  }

 private:
  __device__ __forceinline__ bool FindWhole(int round, Task& task) const {
    const Schedule::Task place =
        schedule_.At(round, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x));
    task.kind = Task::kEnd;
    if (place.kind != Schedule::Task::kTask) return place.kind == Schedule::Task::kEnd;
    task.kv_head = place.kv_head;
    int len_k = 0;
    const OwnedItem found = FindItem(
        p_, place.row_tile,
        [&](int seq, const Range& tokens, int key_begin) {
          return CountOf(seq, tokens, key_begin, len_k);
        },
        LongestFirst{plan_, len_k});
    if (!found.exists) {
      const int heads = schedule_.num_kv_heads;
      const int spare_tiles = schedule_.row_tiles - place.row_tile + found.beyond;
      task.kind = Task::kPadding;
      task.padding = {FirstToken(p_), found.end};
      task.first = found.beyond * heads + place.kv_head;
      task.step = spare_tiles * heads;
      return plan_.fill_padding;
    }
    task.kv_head = place.kv_head;
    task.keys = SetRows(task, found.sequence, found.count - 1 - found.number);
    return true;
  }

 private:
  // A row tile of a sequence, but for its keys, which it returns.
  __device__ __forceinline__ KeyTiles SetRows(Task& task, const Sequence& sequence,
                                              int row_tile) const {
    task.kind = Task::kRows;
    task.sequence = sequence;
    const int first_token = row_tile * plan_.tokens_per_tile;
    task.first_token = first_token;
    const VisibleRange keys =
        VisibleToRows<false>(p_, sequence, first_token * plan_.group,
                             (first_token + plan_.tokens_per_tile) * plan_.group - 1);
    task.first_visible = keys.some.begin;
    task.few = sequence.tokens.size() * plan_.group <= kFewRows;
    task.piece_place = -1;
    task.clear = ClearTilesOf(keys.all.begin, keys.all.end, S::kTileKeys);
    const int64_t layer = p_.cache.layer ? *p_.cache.layer : 0;
    const bool exists = layer >= 0 && layer < p_.cache.num_layers;
    return TilesOf(keys.some.begin, exists ? keys.some.end : keys.some.begin,
                   p_.paged ? sequence.k_begin : 0, S::kTileKeys);
  }

  // The next piece of this CTA's slice; behind them its share of the padding.
  __device__ __forceinline__ bool FindPiece(Task& task) {
    while (slice_.left > 0) {
      const int at = slice_.at, left = slice_.left, kv_head = slice_.kv_head;
      const OwnedItem found = FindItem(p_, at, [&](int seq, const Range& tokens, int key_begin) {
        const int len_k = SequenceAt(p_, seq, tokens.begin, key_begin).len_k;
        return static_cast<int>(LineTasksOfLane(p_, plan_, tokens, len_k).total());
      });
      const Sequence& sequence = found.sequence;
      const LineTasks tasks = LineTasksOfLane(p_, plan_, sequence.tokens, sequence.len_k);
      const int row_tile = tasks.At(found.number), cost = tasks.CostOf(row_tile);
      // Of the position in the task, and of the slice's beginning.
      const int position = found.number - static_cast<int>(tasks.Before(row_tile));
      const int passed = position - (slice_.line.payload - slice_.skipped - left);
      __syncwarp();  // all lanes have read the slice
      slice_.Advance(at, left, kv_head, cost - position);
      task.kv_head = kv_head;
      const KeyTiles keys = SetRows(task, sequence, row_tile);
      task.keys = keys;
      __syncwarp();
      if (keys.count == 0) {
        if (passed > 0) continue;
        return true;
      }
      const LinePiece piece =
          PieceOf(slice_.line.payload, static_cast<int>(blockIdx.x), passed, cost, keys.count);
      if (piece.begin == piece.end) continue;
      if (piece.count > 1) SetPiece(task, keys, piece);
      return true;
    }
    task.kind = Task::kEnd;
    if (filled_ || !plan_.fill_padding) return true;
    filled_ = true;
    const OwnedItem none = FindItem(p_, INT_MAX, [](int, const Range&, int) { return 0; });
    task.kind = Task::kPadding;
    task.padding = {FirstToken(p_), none.end};
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
    plan_.pieces.RecordAt(slice, place) = {piece.count, piece.first_slice,
                                           task.sequence.tokens.begin + task.first_token,
                                           tokens * plan_.group, task.kv_head};
  }

  // Row tiles of a sequence, and its keys.
  __device__ __forceinline__ int CountOf(int seq, const Range& tokens, int key_begin,
                                         int& len_k) const {
    const int64_t rows = int64_t{tokens.size()} * plan_.group;
    if (rows == 0) return 0;
    len_k = SequenceAt(p_, seq, tokens.begin, key_begin).len_k;
    if (rows < plan_.min_packed_rows && len_k > taken_keys_) return 0;
    return CeilDiv(tokens.size(), plan_.tokens_per_tile);
  }

  const Params& p_;
  const LaunchPlan& plan_;
  OwnSlice& slice_;
  Schedule schedule_;
  int taken_keys_ = -1;
  bool filled_ = false;  // whether the CTA's padding is
};

}  // namespace intarsia::attention::sm90
