// The producers: one warp finds the tasks of its CTA, one has the copy engine fetch Q and K, and
// one V. K and V apart, since a warp that copies pages of 16 slots is busy with issuing their
// boxes: each takes some 50 cycles.
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

// Finds the CTA's slice of the line of all tasks, if there is to be one (line.h); a warp together,
// before it gives up its registers. The line is the same in all CTAs.
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
    constexpr float kRowBytes = (S::kD + S::kDv) * 2;
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

template <class S>
__device__ __forceinline__ void ProduceTasks(const Params& p, const LaunchPlan& plan,
                                             Shared<S>& shared) {
  TaskFinder<S> finder(p, plan, shared.slice);
  cuda::RingPlace<Shared<S>::kTasks> place;
  for (int round = 0;; ++round) {
    Task& task = shared.tasks[place.index];
    shared.task_empty[place.index].Wait(place.parity ^ 1);
    if (!finder.Find(round, task)) continue;
    __syncwarp();
    if (threadIdx.x % 32 == 0) shared.task_full[place.index].Arrive();
    if (task.kind == Task::kEnd) return;
    place.Next();
  }
}

// Calls work(task) for the tasks of rows; a warp together.
template <class S, class Work>
__device__ __forceinline__ void ForEachTask(Shared<S>& shared, Work work) {
  for (cuda::RingPlace<Shared<S>::kTasks> place;; place.Next()) {
    shared.task_full[place.index].Wait(place.parity);
    const Task& task = shared.tasks[place.index];
    if (task.kind == Task::kEnd) return;
    if (task.kind == Task::kRows) work(task);
    __syncwarp();
    if (threadIdx.x % 32 == 0) shared.task_empty[place.index].Arrive();
  }
}

// Walks over the tiles of keys of a task, of which each lane copies a box: where no key lies, one
// from outside of the tensor, which is zeros.
template <class S>
class TileWalk {
 public:
  struct Box {
    int slot, page;
  };

  __device__ TileWalk(const Params& p, const LaunchPlan& plan)
      : p_(p),
        plan_(plan),
        first_row_(static_cast<int>(threadIdx.x) % 32 * plan.box_rows),
        layer_(p.cache.layer ? *p.cache.layer : 0) {}

  // load(first_key, box, missing) for each tile, from the last to the first; bit i of `missing`:
  // the tile's box i should hold keys, but its page does not exist.
  template <class Load>
  __device__ __forceinline__ void ForEachTile(const Task& task, Load load) const {
    const KeyPlaces places(p_, plan_.page_size, task.sequence);
    int first_key = task.keys.last_key;
    Lookup next;
    if (task.keys.count > 0) next = Find(places, task.sequence, first_key);
    for (int left = task.keys.count; left > 0; --left, first_key -= S::kTileKeys) {
      const bool exists = next.needed && places.Exists(next.place);
      const Box box{
          exists ? static_cast<int>(next.place.slot) : 0,
          exists ? static_cast<int>(next.place.page_low) : static_cast<int>(p_.cache.num_pages)};
      const uint32_t missing = __ballot_sync(0xffffffffu, next.needed && !exists);
      // Asked for a tile ahead, so that nobody waits for the page table.
      if (left > 1) next = Find(places, task.sequence, first_key - S::kTileKeys);
      load(first_key, box, missing);
    }
  }

  // The lane's box of every panel.
  template <int kPanels>
  __device__ __forceinline__ void Copy(char* tile, const CUtensorMap& map, const Box& box,
                                       int kv_head, cuda::Barrier& barrier) const {
    if (first_row_ >= S::kTileKeys) return;
    for (int panel = 0; panel < kPanels; ++panel) {
      char* const to = tile + (panel * S::kTileKeys + first_row_) * cuda::kPanelRowBytes;
      const int32_t at[] = {panel * cuda::kPanelColumns, box.slot, kv_head, box.page, layer_};
      cuda::CopyBox(to, map, at, barrier);
    }
  }

 private:
  struct Lookup {
    KeyPlace place;
    bool needed = false;  // whether there are keys in the lane's box
  };

  __device__ __forceinline__ Lookup Find(const KeyPlaces& places, const Sequence& sequence,
                                         int first_key) const {
    Lookup lookup;
    const int key = first_key + first_row_;
    lookup.needed = first_row_ < S::kTileKeys && key < sequence.len_k && key + plan_.box_rows > 0;
    if (lookup.needed) lookup.place = places.Find(key);
    return lookup;
  }

  const Params& p_;
  const LaunchPlan& plan_;
  const int first_row_;  // of the lane's box in a tile
  const int layer_;
};

template <class S>
__device__ __forceinline__ void ProduceKeys(const Params& p, const Maps& maps,
                                            const LaunchPlan& plan, Shared<S>& shared) {
  const bool elected = threadIdx.x % 32 == 0;
  const TileWalk<S> walk(p, plan);
  cuda::RingPlace<S::kKeyStages> k;
  uint32_t q_parity = 0;
  const auto load_query = [&](const Task& task) {
    shared.q_empty.Wait(q_parity ^ 1);
    q_parity ^= 1;
    if (!elected) return;
    const int rows = plan.tokens_per_tile * plan.group;
    shared.q_full.ArriveExpecting(rows * cuda::kPanelRowBytes * S::kPanels);
    for (int panel = 0; panel < S::kPanels; ++panel) {
      const int32_t at[] = {panel * cuda::kPanelColumns, task.kv_head * plan.group,
                            task.sequence.tokens.begin + task.first_token};
      cuda::CopyBox(shared.q + panel * S::kTileRows * cuda::kPanelRowBytes, maps.q, at,
                    shared.q_full);
    }
  };
  ForEachTask(shared, [&](const Task& task) {
    if (task.keys.count == 0) load_query(task);
    walk.ForEachTile(
        task, [&](int first_key, const typename TileWalk<S>::Box& box, uint32_t missing) {
          shared.k_empty[k.index].Wait(k.parity ^ 1);
          cuda::Barrier& full = shared.k_full[k.index];
          if (elected) {
            shared.boxes[k.index] = ~missing;
            full.ArriveExpecting(S::kKeyBytes);
          }
          walk.template Copy<S::kPanels>(shared.k[k.index], maps.k, box, task.kv_head, full);
          k.Next();
          // The room for Q may be free later than that for K.
          if (first_key == task.keys.last_key) load_query(task);
        });
  });
}

// A weight of 0 times what lies behind a sequence, a NaN say, would not be 0. A warp together.
template <class S>
__device__ __forceinline__ void ClearRows(char* tile, int begin, int end) {
  constexpr int kUnits = cuda::kPanelRowBytes / 16;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < (end - begin) * kUnits; i += 32) {
    for (int panel = 0; panel < S::kValuePanels; ++panel)
      reinterpret_cast<uint4*>(tile)[(panel * S::kTileKeys + begin) * kUnits + i] = {};
  }
}

template <class S>
__device__ __forceinline__ void ProduceValues(const Params& p, const Maps& maps,
                                              const LaunchPlan& plan, Shared<S>& shared) {
  const bool elected = threadIdx.x % 32 == 0;
  const TileWalk<S> walk(p, plan);
  cuda::RingPlace<S::kValueStages> v;
  uint32_t landed_parity = 0;
  ForEachTask(shared, [&](const Task& task) {
    walk.ForEachTile(task, [&](int first_key, const typename TileWalk<S>::Box& box, uint32_t) {
      shared.v_empty[v.index].Wait(v.parity ^ 1);
      const StrayRows stray = StrayRowsOf(first_key, task.first_visible, task.sequence.len_k,
                                          S::kTileKeys, plan.box_rows);
      cuda::Barrier& full = shared.v_full[v.index];
      cuda::Barrier& landed = stray.any() ? shared.v_landed : full;
      char* const tile = shared.v[v.index];
      if (elected) landed.ArriveExpecting(S::kValueBytes);
      walk.template Copy<S::kValuePanels>(tile, maps.v, box, task.kv_head, landed);
      if (stray.any()) {
        landed.Wait(landed_parity);
        landed_parity ^= 1;
        ClearRows<S>(tile, 0, stray.head);
        ClearRows<S>(tile, stray.tail, stray.tail_end);
        cuda::FenceForAsyncReads();
        __syncwarp();
        if (elected) full.Arrive();
      }
      v.Next();
    });
  });
}

}  // namespace intarsia::attention::sm90
