// What the warps of a CTA share: stages of operands, results on their way out, tasks, and the
// barriers around them.
#pragma once
#include "src/core/cuda/tma.cuh"
#include "src/core/cuda/wgmma_layout.h"
#include "src/matmul/cuda/sm90/tiles.h"
#include "src/matmul/cuda/units.cuh"

namespace intarsia::matmul::sm90 {

// The barriers of a ring of buffers in shared memory. Copies write to all CTAs of a cluster, so a
// buffer is empty when it is in all of them.
template <int kPlaces, int kCluster = 1>
struct Ring {
  cuda::Barrier full[kPlaces], empty[kPlaces];

  // By a warpgroup.
  __device__ __forceinline__ void Release(int index) {
    const auto thread = static_cast<uint32_t>(threadIdx.x % 128);
    if constexpr (kCluster == 1) {
      if (thread == 0) empty[index].Arrive();
    } else {
      if (thread < kCluster) empty[index].ArriveAt(thread);
    }
  }

  __device__ void Init(int producers, int consumers) {
    for (int i = 0; i < kPlaces; ++i) {
      full[i].Init(producers);
      empty[i].Init(kCluster * consumers);
    }
  }
};

// Copies a box to all CTAs of a cluster, or to this one if it is alone.
template <int kCluster, int kAxes>
__device__ __forceinline__ void CopyBoxToCluster(void* shared, const CUtensorMap& map,
                                                 const int32_t (&coordinates)[kAxes],
                                                 cuda::Barrier& barrier) {
  if constexpr (kCluster == 1)
    cuda::CopyBox(shared, map, coordinates, barrier);
  else
    cuda::CopyBoxToBlocks(shared, map, coordinates, barrier, (1 << kCluster) - 1);
}
// Before the first copy, and before the end: a CTA that is gone has no barriers to arrive at.
template <int kCluster>
__device__ __forceinline__ void SyncCtas() {
  if constexpr (kCluster == 1)
    __syncthreads();
  else
    cuda::ClusterSync();
}

inline constexpr int kTasks = 2;

template <class S>
struct Task {
  enum Kind { kEnd, kProduct, kZeros };
  Kind kind;
  Unit unit;
  // With gathered rows: the row of x that each row takes, or -1.
  int taken[S::kRows];
};

template <class S>
struct alignas(cuda::kSwizzleAtomBytes) Shared {
  alignas(cuda::kSwizzleAtomBytes) char w[S::kStages][S::kWeightBytes];
  alignas(cuda::kSwizzleAtomBytes) char x[S::kStages][S::kRowBytes];
  alignas(cuda::kSwizzleAtomBytes) char staged[kConsumers][2][S::kStagedBytes];
  Ring<S::kStages, S::kCluster> stages;
  Ring<kTasks> ring;
  Task<S> tasks[kTasks];
};

// Calls work(task) for the tasks of a CTA until the end; a warp together. `Work` may be done with
// the task's data when it returns.
template <class Shared, class Work>
__device__ __forceinline__ void ForEachTask(Shared& shared, Work work) {
  for (cuda::RingPlace<kTasks> place;; place.Next()) {
    shared.ring.full[place.index].Wait(place.parity);
    const auto& task = shared.tasks[place.index];
    if (task.kind == task.kEnd) return;
    work(task);
    __syncwarp();
    if (threadIdx.x % 32 == 0) shared.ring.empty[place.index].Arrive();
  }
}

// Writes tasks until find(task) gives the end; a warp together. `find` is called before the place
// is free, and gives what publishes the task to it.
template <class Shared, class Find>
__device__ __forceinline__ void ProduceTasks(Shared& shared, Find find) {
  for (cuda::RingPlace<kTasks> place;; place.Next()) {
    const auto write = find();
    shared.ring.empty[place.index].Wait(place.parity ^ 1);
    auto& task = shared.tasks[place.index];
    write(task);
    __syncwarp();
    if (threadIdx.x % 32 == 0) shared.ring.full[place.index].Arrive();
    if (task.kind == task.kEnd) return;
  }
}

}  // namespace intarsia::matmul::sm90
