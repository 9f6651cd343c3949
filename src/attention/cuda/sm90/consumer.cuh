// A consumer: a warpgroup that computes 64 rows of each task of its CTA.
#pragma once
#include "src/attention/cuda/sm90/epilogue.cuh"
#include "src/attention/cuda/sm90/softmax.cuh"
#include "src/core/cuda/wgmma.cuh"

namespace intarsia::attention::sm90 {

template <class S, class T>
class Consumer {
 public:
  __device__ Consumer(const Params& p, const LaunchPlan& plan, Shared<S>& shared, int number)
      : p_(p),
        plan_(plan),
        shared_(shared),
        number_(number),
        logit_(p, p.scale),
        factor_(logit_.factor()) {
    // The first turn is the first warpgroup's.
    if (number_ == 0) cuda::BarrierArrive(Turn(0), kTurnThreads);
  }

  // All tasks of the CTA.
  __device__ __forceinline__ void Run() {
    cuda::RingPlace<Shared<S>::kTasks> place;
    for (;; place.Next()) {
      shared_.task_full[place.index].Wait(place.parity);
      const Task& task = shared_.tasks[place.index];
      if (task.kind == Task::kEnd) return;
      if (task.kind == Task::kRows)
        Attend(task);
      else
        FillPadding<uint4>(p_, task.padding, task.first, task.step,
                           threadIdx.x - cuda::kWarpgroupThreads,
                           S::kThreads - cuda::kWarpgroupThreads);
      __syncwarp();
      if (threadIdx.x % 32 == 0) shared_.task_empty[place.index].Arrive();
    }
  }

 private:
  static constexpr int kScores = S::kTileKeys / 2;
  using Place = cuda::RingPlace<S::kStages>;
  using Scores = float[kScores];
  using Weights = uint32_t[kScores / 2];
  using Out = float[S::kDv / 2];
  static constexpr int kTurnThreads = 2 * cuda::kWarpgroupThreads;

  // Barrier 0 is __syncthreads'.
  static __device__ int Turn(int consumer) { return 1 + consumer; }

  __device__ __forceinline__ void Release(cuda::Barrier& empty) const {
    if (threadIdx.x % cuda::kWarpgroupThreads == 0) empty.Arrive();
  }

  __device__ __forceinline__ void WaitForKeys(const Place& k) const {
    shared_.k_full[k.index].Wait(k.parity);
  }

  // s = Q K', in flight afterwards.
  __device__ __forceinline__ void MultiplyKeys(Scores& s, const Place& place) const {
    using M = cuda::Wgmma<S::kTileKeys>;
    const uint32_t q =
        cuda::SharedAddress(shared_.q) + number_ * cuda::kWgmmaRows * cuda::kPanelRowBytes;
    const uint32_t k = cuda::SharedAddress(shared_.k[place.index]);
    cuda::WgmmaFence();
    M::template Shared<T, false>(s, cuda::ColumnsSummed(q), cuda::ColumnsSummed(k));
#pragma unroll
    for (int step = 1; step < S::kD / cuda::kWgmmaStep; ++step)
      M::template Shared<T, true>(
          s, cuda::ColumnsSummed(q + cuda::ColumnStepBytes(S::kTileRows, step)),
          cuda::ColumnsSummed(k + cuda::ColumnStepBytes(S::kTileKeys, step)));
    cuda::WgmmaCommit();
  }
  // o += P V, in flight afterwards.
  __device__ __forceinline__ void MultiplyValues(Out& o, const Weights& weights) const {
    const uint32_t v = cuda::SharedAddress(shared_.v[place_.index]);
    cuda::WgmmaFence();  // the weights were written since the last one
#pragma unroll
    for (int step = 0; step < S::kTileKeys / cuda::kWgmmaStep; ++step)
      cuda::Wgmma<S::kDv>::template Registers<T>(
          o, weights + 4 * step, cuda::RowsSummed(v + cuda::RowStepBytes(step), S::kTileKeys));
    cuda::WgmmaCommit();
  }

  // From products to weights, for any tile. Returns whether o has to be multiplied by `kept`.
  __device__ __forceinline__ bool Softmax(Scores& s, const Task& task, int first_key,
                                          uint32_t boxes, Rows& rows, float (&kept)[2]) const {
    if (!logit_.folds()) {
      logit_.Apply(s);
      if (p_.alibi_slopes.data) SubtractAlibi(s, p_, plan_, task, first_key);
    }
    if (boxes != ~0u || !task.clear.Has(first_key))
      MaskScores(s, p_, plan_, task, first_key, boxes);
    const bool raised = RaiseBases<T>(s, factor_, {0.0f, 0.0f}, rows, kept);
    SubtractBases(s, factor_, rows);
    return raised;
  }
  // The same for a clear tile after every row has seen a key, which most are.
  __device__ __forceinline__ bool SoftmaxOfClear(Scores& s, Rows& rows, float (&kept)[2]) const {
    if (!__any_sync(0xffffffffu, SubtractBases(s, factor_, rows))) return false;
    const float before[2] = {rows.base[0], rows.base[1]};
    if (!RaiseBases<T>(s, 1.0f, before, rows, kept)) return false;  // equal to b, or a NaN
#pragma unroll
    for (int i = 0; i < kScores; ++i) s[i] += before[i / 2 % 2] - rows.base[i / 2 % 2];
    return true;
  }

  // o and the sums of the warpgroup's rows over all tiles of keys. While the tensor cores add a
  // tile of V, this warpgroup computes the weights of the next tile; and while it does, the other
  // one has its turn on the tensor cores.
  __device__ __forceinline__ void AddTiles(const Task& task, Rows& rows, Out& o) {
    int first_key = task.keys.last_key;
    Weights weights;
    float kept[2];
    {
      Scores s;
      WaitForKeys(place_);
      const uint32_t boxes = shared_.boxes[place_.index];
      MultiplyKeys(s, place_);
      cuda::WgmmaWait<0>();
      Release(shared_.k_empty[place_.index]);
      Softmax(s, task, first_key, boxes, rows, kept);
      TakeWeights(s, rows);
      ToOperand<T>(s, weights);
      if (task.keys.count > 1) WaitForKeys(place_.After());
    }
    // Whether scores are products times a factor, and all rows of the warp have seen a key.
    bool settled = false;
#pragma unroll 1
    for (int left = task.keys.count - 1; left > 0; --left) {
      Scores s;
      first_key -= S::kTileKeys;
      const Place keys = place_.After();
      const uint32_t boxes = shared_.boxes[keys.index];
      cuda::BarrierSync(Turn(number_), kTurnThreads);
      MultiplyKeys(s, keys);
      shared_.v_full[place_.index].Wait(place_.parity);
      MultiplyValues(o, weights);
      cuda::BarrierArrive(Turn(number_ + 1 == S::kConsumers ? 0 : number_ + 1), kTurnThreads);
      cuda::WgmmaWait<1>();
      Release(shared_.k_empty[keys.index]);
      bool raised;
      if (settled && task.clear.Has(first_key) && boxes == ~0u) {
        raised = SoftmaxOfClear(s, rows, kept);
      } else {
        raised = Softmax(s, task, first_key, boxes, rows, kept);
        settled = logit_.folds() && !__any_sync(0xffffffffu, rows.unseen());
      }
      TakeWeights(s, rows);
      // ptxas would have the additions of the weights wait for V; a branch that seems to depend on
      // their sums keeps them in the shadow of the exponentials.
      if (left > 1 && rows.Summed()) WaitForKeys(keys.After());
      cuda::WgmmaWait<0>();
      Release(shared_.v_empty[place_.index]);
      place_ = keys;
      ToOperand<T>(s, weights);
      if (raised) ScaleRows(o, kept);
    }
    if (!S::kOutInQuery) Release(shared_.q_empty);
    shared_.v_full[place_.index].Wait(place_.parity);
    MultiplyValues(o, weights);
    cuda::WgmmaWait<0>();
    Release(shared_.v_empty[place_.index]);
    place_ = place_.After();
  }

  __device__ __forceinline__ void Attend(const Task& task) {
    Rows rows;
    Out o;
#pragma unroll
    for (float& x : o) x = 0.0f;
    shared_.q_full.Wait(q_parity_);
    q_parity_ ^= 1;
    if (task.keys.count > 0)
      AddTiles(task, rows, o);
    else if (!S::kOutInQuery)
      Release(shared_.q_empty);

    const ThreadPlace place;
    float lse[2], by[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = RowOf(plan_, task, place.row + 8 * r).head;
      by[r] = FinishRow(rows.base[r], rows.l[r], SinkOf(p_, head), lse[r]);
    }
    ScaleRows(o, by);
    char* const staged = S::kOutInQuery ? shared_.q : shared_.out;
    if constexpr (S::kOutInQuery)  // all warps have read their rows of Q
      cuda::BarrierSync(Turn(S::kConsumers) + number_, cuda::kWarpgroupThreads);
    WriteRows<S, T>(p_, plan_, task, o, lse, staged);
    if constexpr (S::kOutInQuery) {
      cuda::FenceForAsyncReads();
      cuda::BarrierSync(Turn(S::kConsumers) + number_, cuda::kWarpgroupThreads);
      Release(shared_.q_empty);
    }
  }

  const Params& p_;
  const LaunchPlan& plan_;
  Shared<S>& shared_;
  const int number_;
  const Logit<std::is_same_v<T, __half> ? DType::kF16 : DType::kBF16> logit_;
  const float factor_;
  // Of the tile whose K, and later V, comes next: the rings of K and V keep step.
  Place place_;
  uint32_t q_parity_ = 0;
};

}  // namespace intarsia::attention::sm90
