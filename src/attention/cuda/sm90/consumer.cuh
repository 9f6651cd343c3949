// A consumer: a warpgroup that computes 64 rows of each task of its CTA.
#pragma once
#include "src/attention/cuda/sm90/alone.cuh"
#include "src/attention/cuda/sm90/epilogue.cuh"
#include "src/attention/cuda/sm90/few.cuh"
#include "src/attention/cuda/sm90/fp8.cuh"
#include "src/attention/cuda/sm90/softmax.cuh"
#include "src/core/cuda/wgmma_e4m3.cuh"

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
    if (S::kTakesTurns && number_ == 0) cuda::BarrierArrive(TurnBarrier(0), kTurnThreads);
    if (!S::kE4M3 && number_ == 1) OfferFewSlots();
  }

  __device__ __forceinline__ void Run() {  // all tasks of the CTA
    for (cuda::RingPlace<Shared<S>::kTasks> place;; place.Next()) {
      shared_.task_full[place.index].Wait(place.parity);
      const Task& task = shared_.tasks[place.index];
      if (task.kind == Task::kEnd) break;
      if (task.kind == Task::kRows)
        Attend(task);
      else
        FillPadding<uint4>(p_, task.padding, task.first, task.step,
                           threadIdx.x - cuda::kWarpgroupThreads,
                           S::kConsumers * cuda::kWarpgroupThreads);
      __syncwarp();
      if (threadIdx.x % 32 == 0) shared_.task_empty[place.index].Arrive();
    }
  }

 private:
  // Of operands of products; T is that of results.
  using Element =
      std::conditional_t<S::kE4M3, __nv_fp8_e4m3, std::conditional_t<S::kCodes, __half, T>>;
  template <int kN>
  using Product = std::conditional_t<S::kE4M3, cuda::WgmmaE4M3<kN>, cuda::Wgmma<kN>>;
  static constexpr int kStep = cuda::kWgmmaStep * 2 / S::kBytes;  // elements that one sums over
  static constexpr int kScores = S::kTileKeys / 2;
  using KeyPlace = cuda::RingPlace<S::kKeyStages>;
  using ValuePlace = cuda::RingPlace<S::kValueStages>;
  using Scores = float[kScores];
  using Weights = uint32_t[kScores * S::kBytes / 4];
  using Out = float[S::kDv / 2];
  static constexpr int kPart = S::kDv / S::kOutParts;  // columns that a product has
  using Sums = OutSums<S>;
  static constexpr int kTurnThreads = 2 * cuda::kWarpgroupThreads;

  __device__ __forceinline__ void Release(cuda::Barrier& empty) const {
    if (threadIdx.x % cuda::kWarpgroupThreads == 0) empty.Arrive();
  }

  // Of this consumer, or of the first one.
  __device__ __forceinline__ uint32_t QueryRows(int number) const {
    return cuda::SharedAddress(shared_.q) + number * cuda::kWgmmaRows * cuda::kPanelRowBytes;
  }

  __device__ __forceinline__ void WaitForKeys(const KeyPlace& k) const {
    shared_.k_full[k.index].Wait(k.parity);
  }

  // s = Q K' of a consumer's rows, in flight afterwards.
  __device__ __forceinline__ void MultiplyKeys(Scores& s, const KeyPlace& place, int number) const {
    using M = Product<S::kTileKeys>;
    const cuda::Descriptor q(cuda::ColumnsSummed(QueryRows(number))),
        k(cuda::ColumnsSummed(cuda::SharedAddress(shared_.k[place.index])));
    cuda::WgmmaFence();
    M::template Shared<Element, false>(s, q.At(0), k.At(0));
#pragma unroll
    for (int step = 1; step < S::kD / kStep; ++step)
      M::template Shared<Element, true>(s, q.At(cuda::ColumnStepBytes(S::kTileRows, step)),
                                        k.At(cuda::ColumnStepBytes(S::kTileKeys, step)));
    cuda::WgmmaCommit();
  }
  // o += P V, in flight afterwards.
  __device__ __forceinline__ void MultiplyValues(Out& o, const Weights& weights,
                                                 const ValuePlace& place) const {
    const uint32_t tile = cuda::SharedAddress(shared_.v[place.index]);
    const cuda::Descriptor v(S::kE4M3 ? cuda::ColumnsSummed(tile)
                                      : cuda::RowsSummed(tile, S::kTileKeys));
    cuda::WgmmaFence();  // the weights were written since the last one
#pragma unroll
    for (int step = 0; step < S::kTileKeys / kStep; ++step) {
      const uint32_t at = S::kE4M3 ? cuda::ColumnStepBytes(S::kDv, step) : cuda::RowStepBytes(step);
#pragma unroll
      for (int part = 0; part < S::kOutParts; ++part)
        Product<kPart>::template Registers<Element>(
            reinterpret_cast<float(&)[kPart / 2]>(o[part * kPart / 2]), weights + 4 * step,
            v.At(at + part * S::kValueBytes / S::kOutParts));
    }
    cuda::WgmmaCommit();
  }

  // Whether scores are products times a factor, and all rows of the warp have seen a key, and no
  // NaN, with which no tile's weights would fit.
  __device__ __forceinline__ bool Settled(const Rows& rows) const {
    return logit_.folds() && !__any_sync(0xffffffffu, rows.unseen() || rows.has_nan());
  }
  // From products to weights, for any tile. Returns whether o has to be multiplied by `kept`.
  __device__ __forceinline__ bool Softmax(Scores& s, const Task& task, int first_key,
                                          uint32_t boxes, Rows& rows, float (&kept)[2]) const {
    if (!logit_.folds()) {
      logit_.Apply(s);
      if (p_.alibi_slopes.data) SubtractAlibi(s, p_, task, first_key);
    }
    if (boxes != ~0u || !task.clear.Has(first_key))
      MaskScores(s, p_, plan_, task, first_key, boxes);
    const bool raised = RaiseBases<Element>(s, factor_, rows, kept);
    float sums[4] = {};
    WeighByBases<0, kScores>(s, factor_, rows, sums);
    rows.Add(sums);
    return raised;
  }
  // To operand A; false if e4m3 has no room for some weight.
  static __device__ __forceinline__ bool Round(const Scores& s, Weights& weights) {
    if constexpr (S::kE4M3) return !ToCodes(s, weights);
    if constexpr (!S::kE4M3) ToOperand<Element>(s, weights);
    return true;
  }
  // The weights of a clear tile after every row has seen a key, which most are, and the end of the
  // products in flight. False if LowerWeights cannot mend weights that are too large: s is lost
  // then.
  __device__ __forceinline__ bool WeighClear(Scores& s, Rows& rows, Weights& weights, Out& o,
                                             Sums& of_tiles) const {
    // The tensor cores are done with the last weights by then, so that the first of these are
    // rounded in the shadow of the last exponentials.
    constexpr int kFirst = kScores / 16 * 12;
    float sums[4] = {}, kept[2];
    WeighByBases<0, kFirst>(s, factor_, rows, sums);
    if (S::kE4M3 || rows.Fit(sums)) {
      cuda::WgmmaWait<0>();
      WeighByBases<kFirst, kScores>(s, factor_, rows, sums);
      const bool fits = Round(s, weights);
      if (S::kE4M3 ? fits : rows.Fit(sums)) {
        rows.Add(sums);
        return true;
      }
    } else {
      WeighByBases<kFirst, kScores>(s, factor_, rows, sums);
    }
    if (!LowerWeights<Element>(s, rows, sums, kept)) return false;
    cuda::WgmmaWait<0>();
    Round(s, weights);
    Rescale(o, of_tiles, kept);
    rows.Add(sums);
    return true;
  }

  // o and the sums of the warpgroup's rows over all tiles of keys. While the tensor cores add a
  // tile of V, this warpgroup computes the weights of the next tile; and while it does, another
  // one has its turn on the tensor cores.
  __device__ __forceinline__ void AddTiles(const Task& task, Rows& rows, Out& o) {
    int first_key = task.keys.last_key;
    Sums of_tiles(shared_, number_);
    Weights weights;
    float kept[2];
    bool settled;
    {
      Scores s;
      WaitForKeys(k_);
      const uint32_t boxes = shared_.boxes[k_.index];
      MultiplyKeys(s, k_, number_);
      cuda::WgmmaWait<0>();
      ReleaseByWarp(shared_.k_empty[k_.index]);
      k_.Next();
      Softmax(s, task, first_key, boxes, rows, kept);
      settled = Settled(rows);
      Round(s, weights);
      if (task.keys.count > 1) WaitForKeys(k_);
    }
#pragma unroll 1
    for (int left = task.keys.count - 1; left > 0; --left) {
      Scores s;
      first_key -= S::kTileKeys;
      const uint32_t boxes = shared_.boxes[k_.index];
      const bool clear = settled && boxes == ~0u && task.clear.Has(first_key);
      if (S::kTakesTurns) cuda::BarrierSync(TurnBarrier(number_), kTurnThreads);
      MultiplyKeys(s, k_, number_);
      shared_.v_full[v_.index].Wait(v_.parity);
      MultiplyValues(o, weights, v_);
      if (S::kTakesTurns)
        cuda::BarrierArrive(TurnBarrier(number_ + 1 == S::kConsumers ? 0 : number_ + 1),
                            kTurnThreads);
      // Asked in the shadow of the products; it takes a while.
      const KeyPlace next = k_.After();
      const bool next_came = left == 1 || shared_.k_full[next.index].Ended(next.parity);
      cuda::WgmmaWait<1>();
      ReleaseByWarp(shared_.k_empty[k_.index]);
      if (!clear || !WeighClear(s, rows, weights, o, of_tiles)) {
        if (clear) MultiplyKeysAlone<S, Element>(s, p_, plan_, shared_, task, first_key);
        const bool raised = Softmax(s, task, first_key, boxes, rows, kept);
        settled = Settled(rows);
        cuda::WgmmaWait<0>();
        Round(s, weights);
        if (raised) Rescale(o, of_tiles, kept);
      }
      cuda::WgmmaWait<0>();  // long ago in both branches, which ptxas does not see
      Release(shared_.v_empty[v_.index]);
      k_ = next;
      v_.Next();
      if constexpr (S::kE4M3) {
        if (left % Sums::kTiles == 0) of_tiles.Take(o);
      }
      if (!next_came) WaitForKeys(k_);
    }
    ReleaseByWarp(shared_.q_empty);
    shared_.v_full[v_.index].Wait(v_.parity);
    MultiplyValues(o, weights, v_);
    cuda::WgmmaWait<0>();
    Release(shared_.v_empty[v_.index]);
    v_.Next();
    if constexpr (S::kE4M3) of_tiles.AddTo(o);
  }
  static __device__ __forceinline__ void Rescale(Out& o, Sums& sums, const float (&by)[2]) {
    ScaleRows(o, by);
    if constexpr (S::kE4M3) sums.Scale(by);
  }

  // The same of a task of few rows in e4m3: this consumer's tiles, every kFewConsumers-th. Memory
  // bounds such tasks, so that tiles have to be released soon: a tile of V is waited for only when
  // the weights of the next one are there.
  //
  // Whoever does not read a tile of K waits for it all the same: the next one in the same place
  // could not be told from the last one. Those of V are in the same places all the time.
  __device__ __forceinline__ void AddOwnTiles(const Task& task, Rows& rows, Out& o) {
    static_assert(S::kValueStages == kFewConsumers);
    int first_key = task.keys.last_key;
    Sums sums(shared_, number_);
    Weights weights;
    ValuePlace weighed;  // the tile of V that they are of
    bool any = false;    // whether there is one
    const auto add_values = [&] {
      shared_.v_full[weighed.index].Wait(weighed.parity);
      MultiplyValues(o, weights, weighed);
      cuda::WgmmaWait<0>();
      if (threadIdx.x % cuda::kWarpgroupThreads == 0)
        shared_.v_empty[weighed.index].Arrive(S::kConsumers);  // for all
    };
#pragma unroll 1
    for (int i = 0; i < task.keys.count; ++i, first_key -= S::kTileKeys) {
      WaitForKeys(k_);
      if (i % kFewConsumers == number_) {
        Scores s;
        float kept[2];
        const uint32_t boxes = shared_.boxes[k_.index];
        MultiplyKeys(s, k_, 0);
        cuda::WgmmaWait<0>();
        ReleaseByWarp(shared_.k_empty[k_.index]);
        const bool raised = Softmax(s, task, first_key, boxes, rows, kept);
        if (any) add_values();
        if (raised) Rescale(o, sums, kept);
        if (i >= Sums::kTiles && i % Sums::kTiles < kFewConsumers) sums.Take(o);
        Round(s, weights);
        weighed = v_;
        any = true;
      } else {
        ReleaseByWarp(shared_.k_empty[k_.index]);
      }
      k_.Next();
      v_.Next();
    }
    if (any) add_values();
    sums.AddTo(o);
  }

  // A task of few rows. Whether this consumer has its sums afterwards.
  __device__ __forceinline__ bool AddFew(const Task& task, Rows& rows, Out& o) {
    if constexpr (S::kE4M3) {
      SetZero(o);
      AddOwnTiles(task, rows, o);
      return GatherFew(rows, o);
    } else {
      return AddFewRows<S, T, Element>(p_, plan_, shared_, task, logit_, number_, k_, v_, rows, o);
    }
  }

  // In e4m3: adds up what the consumers have. The first one gets it, and its result is true.
  __device__ __forceinline__ bool GatherFew(Rows& rows, Out& o) {
    ReleaseByWarp(shared_.q_empty);
    const auto sync = [] { cuda::BarrierSync(kFewBarrier<S>, kFewThreads); };
    const int thread = static_cast<int>(threadIdx.x) % cuda::kWarpgroupThreads;
    const int row = cuda::AccumulatorRow(thread, 0);
    float* const out = shared_.few_sums();
    sync();  // the last such task's sums have been read
    if (number_ == 1) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float l = RowSum(rows.l[r]);
        if (thread % 4) continue;
        shared_.few_base[row + 8 * r] = rows.base[r];
        shared_.few_of_warp[0][row + 8 * r] = l;
      }
#pragma unroll
      for (int i = 0; i < S::kDv / 2; ++i) out[i * cuda::kWarpgroupThreads + thread] = o[i];
    }
    sync();
    if (number_ == 0) {
      float other[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float theirs = shared_.few_base[row + 8 * r], base = fmaxf(rows.base[r], theirs);
        const float kept = cuda::Exp2(rows.base[r] - base);
        other[r] = cuda::Exp2(theirs - base);
        // l is summed over the lanes of a row later.
        rows.l[r] =
            rows.l[r] * kept + (thread % 4 ? 0.0f : shared_.few_of_warp[0][row + 8 * r] * other[r]);
        rows.base[r] = base;
#pragma unroll
        for (int i = 2 * r; i < S::kDv / 2; i += 4) o[i] *= kept, o[i + 1] *= kept;
      }
#pragma unroll
      for (int i = 0; i < S::kDv / 2; ++i)
        o[i] += out[i * cuda::kWarpgroupThreads + thread] * other[i / 2 % 2];
    }
    return number_ == 0;
  }

  __device__ __forceinline__ void Attend(const Task& task) {
    Rows rows;
    Out o;
    if constexpr (S::kScaled) {
      logit_ = {p_, ScoreScale(p_, task.sequence.index, task.kv_head)};
      factor_ = logit_.factor();
    }
    shared_.q_full.Wait(q_parity_);
    q_parity_ ^= 1;
    if constexpr (kNarrowsQuery<S, T>) {
      const int warp = static_cast<int>(threadIdx.x) / 32 % 4;  // whose rows of Q it multiplies
      if (!task.few) logit_.Scale(shared_.codes.query_factor[4 * number_ + warp]);
      factor_ = logit_.factor();
    }
    if (task.few) {
      if (!AddFew(task, rows, o)) return;
    } else {
      SetZero(o);
      if (task.keys.count > 0)
        AddTiles(task, rows, o);
      else
        ReleaseByWarp(shared_.q_empty);
    }

    if constexpr (S::kE4M3) SortColumns(o);
    const ThreadPlace place(task.few);
    float lse[2], by[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sink = -INFINITY;  // it counts once, where pieces become one
      if (p_.sinks && task.piece_place < 0)
        sink = SinkOf(p_, RowOf(p_, task, place.row + 8 * r).head);
      by[r] = FinishRow(rows.base[r], rows.l[r], sink, lse[r]);
      if constexpr (S::kScaled) by[r] *= p_.v_scale.At(task.sequence.index, task.kv_head);
    }
    ScaleRows(o, by);
    if (task.piece_place >= 0)
      LeavePiece<S>(plan_, task, number_ * cuda::kWgmmaRows, o, lse);
    else
      StoreRows<S, T>(p_, plan_, task, o, lse);
  }

  const Params& p_;
  const LaunchPlan& plan_;
  Shared<S>& shared_;
  const int number_;
  Logit<std::is_same_v<T, __half> ? DType::kF16 : DType::kBF16> logit_;  // with scales of the task
  float factor_;
  // Of the tiles that come next.
  KeyPlace k_;
  ValuePlace v_;
  uint32_t q_parity_ = 0;
};

}  // namespace intarsia::attention::sm90
