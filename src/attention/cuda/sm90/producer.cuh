// The producers: one warp finds the tasks of its CTA, one has the copy engine fetch Q and K, and
// one V. K and V apart, since a warp that copies pages of 16 slots is busy with issuing their
// boxes: each takes some 50 cycles. (In codes one warp fetches both: widen.cuh.)
#pragma once
#include "src/attention/cuda/sm90/tasks.cuh"

namespace intarsia::attention::sm90 {

// The warp that finds the tasks.
//
// Until the first one is found the CTA does nothing. So those that there is room for are found
// before the warp gives up its registers, by code of their own, which hardly spills and reads the
// first sequences once.
template <class S>
class TaskProducer {
 public:
  __device__ TaskProducer(const Params& p, const LaunchPlan& plan, Shared<S>& shared)
      : p_(p), plan_(plan), shared_(shared), finder_(p, plan, shared.finder) {}

  __device__ __forceinline__ void ProduceFirst() {
    const LaneSequences first(p_);
    KeyPlaces(p_, plan_.page_size, first.own()).PrefetchLast();
    finder_.Begin(first);
    const auto again = [&] { return first; };
    // The first one as if tasks were whole; then kSliceWarp knows, and it is found again if not.
    // Outside of the loop, so that ptxas does not load the constants of the loop first.
    const bool found = finder_.FindWhole(0, again, shared_.tasks[0]);
    cuda::BarrierSync(kTaskBarrier, kTaskBarrierThreads);
    const bool cuts = finder_.Cuts();
    if (found && !cuts) Publish();
#pragma unroll 1
    for (int round = cuts ? 0 : 1; round < Shared<S>::kTasks && !ended_; ++round)
      if (finder_.Find(round, cuts, again, shared_.tasks[place_.index])) Publish();
  }
  // By kSliceWarp, meanwhile.
  static __device__ __forceinline__ void FindOwnSlice(const Params& p, const LaunchPlan& plan,
                                                      Shared<S>& shared) {
    if (threadIdx.x % 32 == 0) shared.finder.slice = {};
    __syncwarp();
    if (plan.pieces.data) FindSlice(plan, LaneSequences(p), shared.finder.slice);
    cuda::BarrierSync(kTaskBarrier, kTaskBarrierThreads);
  }
  __device__ __forceinline__ void ProduceOthers() {
    const bool cuts = finder_.Cuts();
    for (int round = Shared<S>::kTasks; !ended_; ++round) {
      shared_.task_empty[place_.index].Wait(place_.parity ^ 1);
      if (finder_.Find(round, cuts, [&] { return LaneSequences(p_); }, shared_.tasks[place_.index]))
        Publish();
    }
  }

 private:
  __device__ __forceinline__ void Publish() {
    __syncwarp();
    ended_ = shared_.tasks[place_.index].kind == Task::kEnd;
    if (threadIdx.x % 32 == 0) shared_.task_full[place_.index].Arrive();
    place_.Next();
  }

  const Params& p_;
  const LaunchPlan& plan_;
  Shared<S>& shared_;
  TaskFinder<S> finder_;
  cuda::RingPlace<Shared<S>::kTasks> place_;
  bool ended_ = false;
};

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
  // the tile's box i should hold keys, but its page does not exist. meanwhile(): while the first
  // page is looked up.
  template <class Load, class Meanwhile>
  __device__ __forceinline__ void ForEachTile(const Task& task, Load load,
                                              Meanwhile meanwhile) const {
    const KeyPlaces places(p_, plan_.page_size, task.sequence);
    int first_key = task.keys.last_key;
    Lookup next;
    if (task.keys.count > 0) next = Find(places, task.sequence, first_key);
    meanwhile();
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

  template <class Load>
  __device__ __forceinline__ void ForEachTile(const Task& task, Load load) const {
    ForEachTile(task, load, [] {});
  }

  // The lane's box of every panel.
  template <int kPanels>
  __device__ __forceinline__ void Copy(char* tile, const CUtensorMap& map, const Box& box,
                                       const Task& task, cuda::Barrier& barrier) const {
    if (first_row_ >= S::kTileKeys) return;
    for (int panel = 0; panel < kPanels; ++panel) {
      char* const to = tile + (panel * S::kTileKeys + first_row_) * cuda::kPanelRowBytes;
      const int32_t at[] = {panel * S::kCopiedColumns, box.slot, task.kv_head, box.page, layer_};
      cuda::CopyBox(to, map, at, barrier, task.alone);
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

// Q of a task, when the one before has been read; a warp together, in which one lane copies.
template <class S>
__device__ __forceinline__ void CopyQuery(const Maps& maps, const LaunchPlan& plan,
                                          Shared<S>& shared, const Task& task, bool elected,
                                          uint32_t& parity, cuda::Barrier& landed) {
  shared.q_empty.Wait(parity ^ 1);
  parity ^= 1;
  if (!elected) return;
  const int rows = plan.tokens_per_tile * plan.group;
  landed.ArriveExpecting(rows * cuda::kPanelRowBytes * S::kPanels);
  for (int panel = 0; panel < S::kPanels; ++panel) {
    const int32_t at[] = {panel * S::kPanelColumns, task.kv_head * plan.group,
                          task.sequence.tokens.begin + task.first_token};
    cuda::CopyBox(shared.q + panel * S::kTileRows * cuda::kPanelRowBytes, maps.q, at, landed);
  }
}

template <class S>
__device__ __forceinline__ void ProduceKeys(const Params& p, const Maps& maps,
                                            const LaunchPlan& plan, Shared<S>& shared) {
  const bool elected = threadIdx.x % 32 == 0;
  const TileWalk<S> walk(p, plan);
  cuda::RingPlace<S::kKeyStages> k;
  uint32_t q_parity = 0;
  const auto load_query = [&](const Task& task) {
    CopyQuery<S>(maps, plan, shared, task, elected, q_parity, shared.q_full);
  };
  ForEachTask(shared, [&](const Task& task) {
    // Where there is room already, Q is asked for while the first page is looked up.
    const bool early = task.keys.count == 0 || shared.q_empty.Ended(q_parity ^ 1);
    const auto load = [&](int first_key, const typename TileWalk<S>::Box& box, uint32_t missing) {
      shared.k_empty[k.index].Wait(k.parity ^ 1);
      cuda::Barrier& full = shared.k_full[k.index];
      if (elected) {
        shared.boxes[k.index] = ~missing;
        full.ArriveExpecting(S::kKeyBytes);
      }
      walk.template Copy<S::kPanels>(shared.k[k.index], maps.k, box, task, full);
      k.Next();
      if (!early && first_key == task.keys.last_key) load_query(task);
    };
    walk.ForEachTile(task, load, [&] {
      if (early) load_query(task);
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

// In e4m3, for the warp that transposes them.
template <class S>
__device__ __forceinline__ void CopyValues(const Params& p, const Maps& maps,
                                           const LaunchPlan& plan, Shared<S>& shared) {
  const TileWalk<S> walk(p, plan);
  cuda::RingPlace<S::kRawStages> raw;
  ForEachTask(shared, [&](const Task& task) {
    walk.ForEachTile(task, [&](int, const typename TileWalk<S>::Box& box, uint32_t) {
      shared.raw_empty[raw.index].Wait(raw.parity ^ 1);
      cuda::Barrier& full = shared.raw_full[raw.index];
      if (threadIdx.x % 32 == 0) full.ArriveExpecting(S::kCopiedValueBytes);
      walk.template Copy<S::kValuePanels>(shared.fp8.raw[raw.index], maps.v, box, task, full);
      raw.Next();
    });
  });
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
      if (elected) landed.ArriveExpecting(S::kCopiedValueBytes);
      walk.template Copy<S::kValuePanels>(tile, maps.v, box, task, landed);
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
