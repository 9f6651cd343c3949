// A consumer: a warpgroup that computes half of the columns of each task of its CTA.
#pragma once
#include <utility>

#include "src/core/cuda/wgmma.cuh"
#include "src/matmul/cuda/sm90/results.cuh"

namespace intarsia::matmul::sm90 {

template <class S, class T, bool kTransposed, bool kGated>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const GroupedParams& p, Shared<S>& shared, int number)
      : p_(p), shared_(shared), results_(p, shared, number), number_(number) {}

  // All tasks of the CTA.
  __device__ __forceinline__ void Run() {
    ForEachTask(shared_, [&](const Task<S>& task) {
      if (task.kind == Task<S>::kProduct)
        RunSteps(task, std::make_integer_sequence<int, S::kSteps>());
      else
        results_.ClearRows(task.unit);
    });
  }

 private:
  using R = Results<S, T, kGated>;
  // From a block of 64 columns to the next: rows of a panel, or a panel.
  static constexpr int kBlockBytes = (kTransposed ? 64 : S::kDepth) * cuda::kPanelRowBytes;
  template <int kSteps>
  using Sums = typename R::template Sums<kSteps>;

  // wgmma's N is a constant: a loop for each number of steps.
  template <int... kSteps>
  __device__ __forceinline__ void RunSteps(const Task<S>& task,
                                           std::integer_sequence<int, kSteps...>) {
    const int steps = S::Tiles::Steps(task.unit.rows);
    ((steps == kSteps + 1 ? Compute<kSteps + 1>(task) : void()), ...);
  }

  template <int kSteps>
  __device__ __forceinline__ void Compute(const Task<S>& task) {
    Sums<kSteps> sums;
#pragma unroll
    for (auto& of_block : sums) {
#pragma unroll
      for (float& sum : of_block) sum = 0.0f;
    }
    const int stages = StagesOf<S>(p_);
    auto before = place_;
#pragma unroll 1
    for (int i = 0; i < stages; ++i) {
      shared_.stages.full[place_.index].Wait(place_.parity);
      Multiply<kSteps>(sums);
      cuda::WgmmaWait<1>();
      if (i > 0) shared_.stages.Release(before.index);
      before = place_;
      place_.Next();
    }
    cuda::WgmmaWait<0>();
    shared_.stages.Release(before.index);
    results_.template Finish<kSteps>(task, sums);
  }

  // The stage at place_, in flight afterwards.
  template <int kSteps>
  __device__ __forceinline__ void Multiply(Sums<kSteps>& sums) const {
    const uint32_t w =
        cuda::SharedAddress(shared_.w[place_.index]) + number_ * S::kBlocks * kBlockBytes;
    const uint32_t x = cuda::SharedAddress(shared_.x[place_.index]);
    cuda::WgmmaFence();
#pragma unroll
    for (int step = 0; step < S::kDepth / cuda::kWgmmaStep; ++step) {
      const uint64_t rows = cuda::ColumnsSummed(x + cuda::ColumnStepBytes(S::kRows, step));
#pragma unroll
      for (int block = 0; block < S::kBlocks; ++block) {
        const uint32_t panel = w + block * kBlockBytes;
        const uint64_t columns =
            kTransposed ? cuda::ColumnsSummed(panel + cuda::ColumnStepBytes(S::kColumns, step))
                        : cuda::RowsSummed(panel + cuda::RowStepBytes(step), S::kDepth);
        cuda::Wgmma<kSteps * R::kStepRows>::template Shared<T, true, !kTransposed>(sums[block],
                                                                                   columns, rows);
      }
    }
    cuda::WgmmaCommit();
  }

  const GroupedParams& p_;
  Shared<S>& shared_;
  const R results_;
  const int number_;
  cuda::RingPlace<S::kStages> place_;
};

}  // namespace intarsia::matmul::sm90
