// A task of few rows on its consumers: the products the other way round. Of 64 rows that a result
// of wgmma has, such a task would use one, say. So keys and columns of V are these rows, and the
// task's rows are columns, of which there are kN, a multiple of eight. Of a tile of keys
//   S' = K Q'  [keys, rows],   P' = 2^(S' * factor - base),   O' += V' P'  [columns of V, rows]
// (GEMMs of few rows do so under the name of swap-AB.)
//
// Memory bounds such tasks. So K and V have a consumer each, and neither waits for the other one's
// copies: the first consumer computes P' of tile after tile, and the second one O'. P' goes through
// kFewSlots places in shared memory.
#pragma once
#include <algorithm>

#include "src/attention/cuda/sm90/few_weights.cuh"

namespace intarsia::attention::sm90 {

// The second consumer's part: adds up V' P' of all tiles, and leaves it for the first one.
template <class S, class Element, int kN>
class FewValues : FewLayout<S, kN> {
  using L = FewLayout<S, kN>;
  using L::kColumns, L::Own, L::RowOf;

 public:
  __device__ explicit FewValues(Shared<S>& shared)
      : shared_(shared),
        warp_(static_cast<int>(threadIdx.x) / 32 % 4),
        lane_(static_cast<int>(threadIdx.x) % 32) {
#pragma unroll
    for (auto& block : o_) {
#pragma unroll
      for (float& x : block) x = 0.0f;
    }
  }

  __device__ __forceinline__ void Run(int tiles, cuda::RingPlace<S::kValueStages>& v) {
#pragma unroll 1
    for (int i = 0; i < tiles; ++i, v.Next()) {
      const int slot = i % kFewSlots;
      cuda::BarrierSync(kFewFullBarrier + slot, kFewThreads);
      if (shared_.few_raised[slot]) Scale(slot);
      shared_.v_full[v.index].Wait(v.parity);
      Multiply(shared_.v[v.index], slot);
      if (threadIdx.x % cuda::kWarpgroupThreads == 0)
        shared_.v_empty[v.index].Arrive(S::kConsumers);  // for all
      cuda::BarrierArrive(kFewEmptyBarrier + slot, kFewThreads);
    }
    // All have read the last weights, where sums go.
    cuda::BarrierSync(OwnBarrier<S>(1), cuda::kWarpgroupThreads);
    Leave();
  }

 private:
  __device__ __forceinline__ void Scale(int slot) {
#pragma unroll
    for (int c = 0; c < L::kOwn; ++c) {
      const float kept = shared_.few_kept[slot][RowOf(c, lane_)];
#pragma unroll
      for (auto& block : o_) block[L::First(c)] *= kept, block[L::First(c) + 2] *= kept;
    }
  }
  __device__ __forceinline__ void Multiply(const char* tile, int slot) {
    const cuda::Descriptor v(cuda::RowsSummed(cuda::SharedAddress(tile), S::kTileKeys));
    cuda::WgmmaFence();
#pragma unroll
    for (int step = 0; step < L::kSteps; ++step) {
      const cuda::Descriptor weights(
          cuda::RowsSummed(cuda::SharedAddress(L::Weights(shared_, slot, step)), S::kTileKeys));
#pragma unroll
      for (int b = 0; b < S::kValuePanels; ++b)
        cuda::Wgmma<kN>::template Shared<Element, true, true, true>(
            o_[b], v.At(cuda::RowStepBytes(step) + b * S::kTileKeys * cuda::kPanelRowBytes),
            weights.At(0));
    }
    cuda::WgmmaCommit();
    cuda::WgmmaWait<0>();
  }
  __device__ __forceinline__ void Leave() {
    const int lane = Anew(lane_), row = RowOf(0, lane), column = warp_ * 16 + lane / 4;
    float* const out[2] = {shared_.few_sums() + L::OutAt(row, column),
                           shared_.few_sums() + L::OutAt(row, column + 8)};
#pragma unroll
    for (int b = 0; b < S::kValuePanels; ++b) {
#pragma unroll
      for (int i = 0; i < kN / 2; ++i)
        out[i / 2 % 2][(RowOf(Own(i), lane) - row) * kColumns + b * cuda::kWgmmaRows] = o_[b][i];
    }
  }

  Shared<S>& shared_;
  const int warp_, lane_;
  float o_[S::kValuePanels][kN / 2];
};

// Before the first task, by the second consumer: says that the slots for weights are empty.
__device__ __forceinline__ void OfferFewSlots() {
  for (int slot = 0; slot < kFewSlots; ++slot)
    cuda::BarrierArrive(kFewEmptyBarrier + slot, kFewThreads);
}

// AddFewRows for kN columns.
template <int kN, class S, class T, class Element, class ToLogit>
__device__ __forceinline__ bool AddFewColumns(const Params& p, const LaunchPlan& plan,
                                              Shared<S>& shared, const Task& task,
                                              const ToLogit& logit, int consumer,
                                              cuda::RingPlace<S::kKeyStages>& k,
                                              cuda::RingPlace<S::kValueStages>& v, Rows& rows,
                                              float (&o)[S::kDv / 2]) {
  constexpr int kAll = S::kConsumers * cuda::kWarpgroupThreads;
  if (consumer == 0) {
    FewWeights<S, T, Element, ToLogit, kN> weights(p, plan, shared, task, logit);
    weights.Run(k);
    v.Advance(task.keys.count);
    if (S::kFewApart) ReleaseByWarp(shared.q_empty);
    cuda::BarrierSync(kFewBarrier<S>, kAll);
    weights.Take(rows, o);
  } else {
    k.Advance(task.keys.count);
    if (S::kFewApart) ReleaseByWarp(shared.q_empty);
    if (consumer == 1)
      FewValues<S, Element, kN>(shared).Run(task.keys.count, v);
    else
      v.Advance(task.keys.count);
    cuda::BarrierSync(kFewBarrier<S>, kAll);
  }
  if (consumer >= kFewConsumers) return false;
  // The next task's weights may go where sums were. A third consumer may be at the next
  // kFewBarrier.
  cuda::BarrierSync(kFewLeaveBarrier, kFewThreads);
  if constexpr (!S::kFewApart) {
    if (consumer != 0)  // sums were there
      ClearSpareRows<S>(shared, plan, static_cast<int>(threadIdx.x) % cuda::kWarpgroupThreads,
                        cuda::kWarpgroupThreads);
    cuda::FenceForAsyncReads();
    ReleaseByWarp(shared.q_empty);
  }
  return consumer == 0;
}

// What each consumer does for a task. Whether this one, number `consumer`, has its sums afterwards,
// as other tasks leave them.
template <class S, class T, class Element, class... Arguments>
__device__ __forceinline__ bool AddFewRows(const Params& p, const LaunchPlan& plan,
                                           Shared<S>& shared, const Task& task,
                                           Arguments&... arguments) {
  const auto add = [&]<int kN>() {
    return AddFewColumns<kN, S, T, Element>(p, plan, shared, task, arguments...);
  };
  constexpr int kMiddle = std::min(S::kFewRows, 32);
  const int rows = task.sequence.tokens.size() * p.group;
  if (rows <= 8) return add.template operator()<8>();
  if (rows <= kMiddle) return add.template operator()<kMiddle>();
  return add.template operator()<S::kFewRows>();
}

}  // namespace intarsia::attention::sm90
