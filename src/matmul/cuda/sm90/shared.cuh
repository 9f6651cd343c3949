// What the warps of a CTA share: stages of operands, results on their way out, tasks, and the
// barriers around them.
#pragma once
#include "src/core/cuda/tma.cuh"
#include "src/core/cuda/wgmma_layout.h"
#include "src/matmul/cuda/sm90/tiles.h"
#include "src/matmul/cuda/units.cuh"

namespace intarsia::matmul::sm90 {

// The barriers of a ring of buffers in shared memory.
template <int kPlaces>
struct Ring {
  cuda::Barrier full[kPlaces], empty[kPlaces];

  // By a warpgroup.
  __device__ __forceinline__ void Release(int index) {
    if (threadIdx.x % 128 == 0) empty[index].Arrive();
  }
  // By a warp, where each releases places.
  __device__ __forceinline__ void ReleaseByWarp(int index) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) empty[index].Arrive();
  }
  __device__ void Init(int producers, int consumers) {
    for (int i = 0; i < kPlaces; ++i) {
      full[i].Init(producers);
      empty[i].Init(consumers);
    }
  }
};

// The barriers of tasks count lanes, each of which arrives when its own reads or writes are done:
// racecheck follows no order from one lane to another's arrival.
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
  alignas(cuda::kSwizzleAtomBytes) char staged[S::kConsumers][2][S::kStagedBytes];
  Ring<S::kStages> stages;
  Ring<kTasks> ring;
  Task<S> tasks[kTasks];
};

// Of the sum.
template <class S>
__device__ __forceinline__ int StagesOf(const GroupedParams& p) {
  return (static_cast<int>(p.k) + S::kDepth - 1) / S::kDepth;
}

// Calls work(task) for the tasks of a CTA until the end; a warp together. `Work` is done with the
// task's data when it returns.
template <class Shared, class Work>
__device__ __forceinline__ void ForEachTask(Shared& shared, Work work) {
  for (uint32_t count = 0;; ++count) {  // one register, where RingPlace has two
    const uint32_t index = count % kTasks;
    shared.ring.full[index].Wait(count / kTasks % 2);
    const auto& task = shared.tasks[index];
    if (task.kind == task.kEnd) return;
    work(task);
    __syncwarp();
    shared.ring.empty[index].Arrive();
  }
}

// Writes tasks until find() gives the end; a warp together. `find` is called before the place is
// free, and gives what writes the task to it.
template <class Shared, class Find>
__device__ __forceinline__ void ProduceTasks(Shared& shared, Find find) {
  for (uint32_t count = 0;; ++count) {
    const uint32_t index = count % kTasks;
    const auto write = find();
    shared.ring.empty[index].Wait(count / kTasks % 2 ^ 1);
    auto& task = shared.tasks[index];
    write(task);
    __syncwarp();
    shared.ring.full[index].Arrive();
    if (task.kind == task.kEnd) return;
  }
}

}  // namespace intarsia::matmul::sm90
