// The producer: one warp that finds the tasks of its CTA and has the copy engine fetch their tiles.
#pragma once
#include "src/attention/cuda/sm90/shared.cuh"
#include "src/core/round.h"

namespace intarsia::attention::sm90 {

// Task number `index`, or what to do instead; a warp together.
template <class S>
__device__ __forceinline__ Task FindTask(const Params& p, const LaunchPlan& plan, int64_t index) {
  Task task;
  if (index >= plan.schedule.tasks()) return task;
  const Schedule::Task place = plan.schedule.At(static_cast<int>(index));
  // The last tile of a sequence comes first: under a causal mask it is the longest one.
  const OwnedItem found = FindItem(p, place.row_tile, [&](int, const Range& tokens, int) {
    const int64_t rows = int64_t{tokens.size()} * plan.group;
    return rows > 0 && rows >= plan.min_packed_rows ? CeilDiv(tokens.size(), plan.tokens_per_tile)
                                                    : 0;
  });
  task.kv_head = place.kv_head;
  if (!found.exists) {
    const int heads = plan.schedule.num_kv_heads;
    const int spare_tiles = plan.schedule.row_tiles - place.row_tile + found.beyond;
    task.kind = Task::kPadding;
    task.padding = {FirstToken(p), found.end};
    task.first = found.beyond * heads + place.kv_head;
    task.step = spare_tiles * heads;
    return task;
  }
  task.kind = Task::kRows;
  task.sequence = found.sequence;
  task.first_token = (found.count - 1 - found.number) * plan.tokens_per_tile;
  const int first_row = task.first_token * plan.group;
  const VisibleRange keys =
      VisibleToRows(p, task.sequence, first_row, first_row + plan.tokens_per_tile * plan.group - 1);
  task.seen_by_all = keys.all;
  const int64_t layer = p.cache.layer ? *p.cache.layer : 0;
  if (layer >= 0 && layer < p.cache.num_layers)
    task.keys =
        TilesOf(keys.some.begin, keys.some.end, p.paged ? task.sequence.k_begin : 0, S::kTileKeys);
  return task;
}

// Copies tiles of K and V, a box a lane: where no key lies, a box from outside of the tensor, which
// is zeros.
template <class S>
class KeyLoader {
 public:
  __device__ KeyLoader(const Params& p, const Maps& maps, const LaunchPlan& plan, Shared<S>& shared)
      : p_(p),
        maps_(maps),
        plan_(plan),
        shared_(shared),
        first_row_(static_cast<int>(threadIdx.x) % 32 * plan.box_rows),
        layer_(p.cache.layer ? *p.cache.layer : 0) {}

  // `load_query` is called once, when the first tile of K is in flight.
  template <class LoadQuery>
  __device__ __forceinline__ void Load(const Task& task, LoadQuery load_query) {
    if (task.keys.count == 0) return load_query();
    const KeyPlaces places(p_, plan_.page_size, task.sequence);
    int first_key = task.keys.last_key;
    Lookup next = Find(places, task.sequence, first_key);
    Box values = {};
    for (int i = 0; i < task.keys.count; ++i, first_key -= S::kTileKeys) {
      const bool exists = next.needed && places.Exists(next.place);
      const Box keys{
          exists ? static_cast<int>(next.place.slot) : 0,
          exists ? static_cast<int>(next.place.page_low) : static_cast<int>(p_.cache.num_pages)};
      const uint32_t missing = __ballot_sync(0xffffffffu, next.needed && !exists);
      // Asked for a tile ahead, so that nobody waits for the page table.
      if (i + 1 < task.keys.count) next = Find(places, task.sequence, first_key - S::kTileKeys);
      LoadKeys(keys, task.kv_head, missing);
      if (i == 0)
        load_query();
      else
        LoadValues(values, task, first_key + S::kTileKeys);
      values = keys;
    }
    LoadValues(values, task, first_key + S::kTileKeys);
  }

 private:
  struct Box {
    int slot, page;
  };
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

  // The lane's box of every panel.
  __device__ __forceinline__ void Copy(char* tile, const CUtensorMap& map, int panels,
                                       const Box& box, int kv_head, cuda::Barrier& barrier) const {
    if (first_row_ >= S::kTileKeys) return;
    for (int panel = 0; panel < panels; ++panel) {
      char* const to = tile + (panel * S::kTileKeys + first_row_) * cuda::kPanelRowBytes;
      const int32_t at[] = {panel * cuda::kPanelColumns, box.slot, kv_head, box.page, layer_};
      cuda::CopyBox(to, map, at, barrier);
    }
  }

  __device__ __forceinline__ void LoadKeys(const Box& box, int kv_head, uint32_t missing) {
    shared_.k_empty[k_.index].Wait(k_.parity ^ 1);
    cuda::Barrier& full = shared_.k_full[k_.index];
    if (threadIdx.x % 32 == 0) {
      shared_.boxes[k_.index] = ~missing;
      full.ArriveExpecting(S::kKeyBytes);
    }
    Copy(shared_.k[k_.index], maps_.k, S::kPanels, box, kv_head, full);
    k_.Next();
  }

  __device__ __forceinline__ void LoadValues(const Box& box, const Task& task, int first_key) {
    shared_.v_empty[v_.index].Wait(v_.parity ^ 1);
    const StrayRows stray =
        StrayRowsOf(first_key, task.sequence.len_k, S::kTileKeys, plan_.box_rows);
    cuda::Barrier& full = shared_.v_full[v_.index];
    cuda::Barrier& landed = stray.any() ? shared_.v_landed : full;
    char* const tile = shared_.v[v_.index];
    if (threadIdx.x % 32 == 0) landed.ArriveExpecting(S::kValueBytes);
    Copy(tile, maps_.v, S::kValuePanels, box, task.kv_head, landed);
    if (stray.any()) {
      landed.Wait(landed_parity_);
      landed_parity_ ^= 1;
      Clear(tile, 0, stray.head);
      Clear(tile, stray.tail, stray.tail_end);
      cuda::FenceForAsyncReads();
      __syncwarp();
      if (threadIdx.x % 32 == 0) full.Arrive();
    }
    v_.Next();
  }

  // A weight of 0 times what lies behind a sequence, a NaN say, would not be 0.
  __device__ __forceinline__ void Clear(char* tile, int begin, int end) const {
    constexpr int kUnits = cuda::kPanelRowBytes / 16;
    for (int i = static_cast<int>(threadIdx.x) % 32; i < (end - begin) * kUnits; i += 32) {
      for (int panel = 0; panel < S::kValuePanels; ++panel)
        reinterpret_cast<uint4*>(tile)[(panel * S::kTileKeys + begin) * kUnits + i] = {};
    }
  }

  const Params& p_;
  const Maps& maps_;
  const LaunchPlan& plan_;
  Shared<S>& shared_;
  const int first_row_;  // of the lane's box in a tile
  const int layer_;
  cuda::RingPlace<S::kStages> k_, v_;
  uint32_t landed_parity_ = 0;
};

template <class S>
__device__ __forceinline__ void Produce(const Params& p, const Maps& maps, const LaunchPlan& plan,
                                        Shared<S>& shared) {
  const bool elected = threadIdx.x % 32 == 0;
  KeyLoader<S> loader(p, maps, plan, shared);
  cuda::RingPlace<Shared<S>::kTasks> place;
  uint32_t q_parity = 0;
  for (int64_t round = 0;; ++round) {
    const auto cta = static_cast<int>(blockIdx.x), num_ctas = static_cast<int>(gridDim.x);
    const Task found = FindTask<S>(p, plan, TaskIndex(round, num_ctas, cta));
    if (found.kind == Task::kPadding && !plan.fill_padding) continue;
    shared.task_empty[place.index].Wait(place.parity ^ 1);
    Task& task = shared.tasks[place.index];  // read from there again: registers are few
    if (elected) {
      task = found;
      shared.task_full[place.index].Arrive();
    }
    __syncwarp();
    place.Next();
    if (task.kind == Task::kEnd) return;
    // Consumers neither wait for a Q here nor release one.
    if (task.kind == Task::kPadding) continue;
    loader.Load(task, [&] {
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
    });
  }
}

}  // namespace intarsia::attention::sm90
