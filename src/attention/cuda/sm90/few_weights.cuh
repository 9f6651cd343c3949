// The first consumer of a task of few rows (few.cuh): the weights of its tiles.
#pragma once
#include "src/attention/cuda/sm90/softmax.cuh"

namespace intarsia::attention::sm90 {

// Where scores and sums are. A thread has those of kOwn rows, RowOf(0) ... RowOf(kOwn - 1).
template <class S, int kN>
struct FewLayout {
  static constexpr int kBlocks = (S::kTileKeys + cuda::kWgmmaRows - 1) / cuda::kWgmmaRows;
  static constexpr int kSteps = S::kTileKeys / cuda::kWgmmaStep;
  static constexpr int kOwn = kN / 4;
  static constexpr int kColumns = S::kValuePanels * cuda::kPanelColumns;
  static_assert(kN <= S::kFewRows);
  static_assert(S::kConsumers == kFewConsumers || S::kFewApart);

  static __device__ __forceinline__ int RowOf(int c, int lane) {
    return c / 2 * 8 + lane % 4 * 2 + c % 2;
  }
  // Register i of a result is of row Own(i), and so is i + 2. First(c): the first one of row c.
  static __device__ constexpr int Own(int i) { return i / 4 * 2 + i % 2; }
  static __device__ constexpr int First(int c) { return c / 2 * 4 + c % 2; }

  // Where the weights of 16 keys lie, a key a row of 128 bytes: apart, or in the rows of Q behind
  // those of the task.
  static __device__ __forceinline__ char* Weights(Shared<S>& shared, int slot, int step) {
    const int unit = slot * kSteps + step;
    if constexpr (S::kFewApart) return shared.few + unit * 16 * cuda::kPanelRowBytes;
    constexpr int kUnits = (S::kTileRows - S::kFewRows) / 16;  // of a panel of Q
    return shared.q +
           (unit / kUnits * S::kTileRows + S::kFewRows + unit % kUnits * 16) * cuda::kPanelRowBytes;
  }
  // Where the number of a row and a column is handed over in the end. Those that a warp writes
  // together lie in different banks.
  static __device__ __forceinline__ int OutAt(int row, int column) {
    return row * kColumns + (column ^ row % 8 / 2 * 8);
  }
};

// T is the type of results, Element that of operands.
template <class S, class T, class Element, class ToLogit, int kN>
class FewWeights : FewLayout<S, kN> {
  using L = FewLayout<S, kN>;
  using L::kBlocks, L::kOwn, L::First, L::Own, L::RowOf;

 public:
  __device__ FewWeights(const Params& p, const LaunchPlan& plan, Shared<S>& shared,
                        const Task& task, const ToLogit& logit)
      : p_(p),
        plan_(plan),
        shared_(shared),
        task_(task),
        logit_(logit),
        factor_(logit.factor()),
        warp_(static_cast<int>(threadIdx.x) / 32 % 4),
        lane_(static_cast<int>(threadIdx.x) % 32) {
#pragma unroll
    for (int c = 0; c < kOwn; ++c) base_[c] = Rows::kUnseen, l_[c] = 0.0f;
  }

  __device__ __forceinline__ void Run(cuda::RingPlace<S::kKeyStages>& k) {
    int first_key = task_.keys.last_key;
#pragma unroll 1
    for (int i = 0; i < task_.keys.count; ++i, first_key -= S::kTileKeys, k.Next()) {
      slot_ = i % kFewSlots;
      shared_.k_full[k.index].Wait(k.parity);
      const uint32_t boxes = shared_.boxes[k.index];
      Scores s;
      MultiplyKeys(s, shared_.k[k.index]);
      __syncwarp();
      if (lane_ == 0) shared_.k_empty[k.index].Arrive(S::kConsumers);  // for all
      cuda::BarrierSync(kFewEmptyBarrier + slot_, kFewThreads);
      const bool clear = boxes == ~0u && task_.clear.Has(first_key);
      if (!settled_ || !clear || !WeighByBases(s)) WeighAny(s, first_key, boxes, clear);
      cuda::BarrierArrive(kFewFullBarrier + slot_, kFewThreads);
    }
    Leave();
  }
  // When both have left what they have: as other tasks leave their sums.
  __device__ __forceinline__ void Take(Rows& rows, float (&o)[S::kDv / 2]) const {
    const int thread = Anew(static_cast<int>(threadIdx.x) % cuda::kWarpgroupThreads);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = cuda::AccumulatorRow(thread, 0) + 8 * r;
      if (row >= kN) {
#pragma unroll
        for (int i = 2 * r; i < S::kDv / 2; i += 4) o[i] = o[i + 1] = 0.0f;
        continue;
      }
      rows.base[r] = shared_.few_base[row];
      float l = 0.0f;
#pragma unroll
      for (int warp = 0; warp < 4; ++warp) l += shared_.few_of_warp[warp][row];
      rows.l[r] = lane_ % 4 ? 0.0f : l;  // it is summed over the lanes of a row later
      const float* from[4];              // of columns 8 m, 8 m + 32, ...
#pragma unroll
      for (int m = 0; m < 4; ++m)
        from[m] = shared_.few_sums() + L::OutAt(row, cuda::AccumulatorColumn(thread, 4 * m));
#pragma unroll
      for (int i = 2 * r; i < S::kDv / 2; i += 4) {
        const float2 pair = *reinterpret_cast<const float2*>(from[i / 4 % 4] + i / 16 * 32);
        o[i] = pair.x, o[i + 1] = pair.y;
      }
    }
  }

 private:
  using Scores = float[kBlocks][kN / 2];

  // A thread's first key of a tile. Register i of block b has the one KeyOf(b, i) further.
  __device__ __forceinline__ int FirstKey() const { return warp_ * 16 + lane_ / 4; }
  static __device__ constexpr int KeyOf(int block, int i) {
    return block * cuda::kWgmmaRows + i / 2 % 2 * 8;
  }
  // Whether the tile has the warp's keys of a block.
  __device__ __forceinline__ bool Has(int block) const {
    return (block + 1) * cuda::kWgmmaRows <= S::kTileKeys ||
           block * cuda::kWgmmaRows + warp_ * 16 < S::kTileKeys;
  }
  static __device__ __forceinline__ void SyncConsumer() {
    cuda::BarrierSync(OwnBarrier<S>(0), cuda::kWarpgroupThreads);
  }

  __device__ __forceinline__ void MultiplyKeys(Scores& s, const char* tile) const {
    using Product = cuda::Wgmma<kN>;
    const cuda::Descriptor k(cuda::ColumnsSummed(cuda::SharedAddress(tile))),
        q(cuda::ColumnsSummed(cuda::SharedAddress(shared_.q)));
    cuda::WgmmaFence();
#pragma unroll
    for (int step = 0; step < S::kD / cuda::kWgmmaStep; ++step) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const uint64_t from = k.At(cuda::ColumnStepBytes(S::kTileKeys, step) +
                                   b * cuda::kWgmmaRows * cuda::kPanelRowBytes),
                       rows = q.At(cuda::ColumnStepBytes(S::kTileRows, step));
        if (step == 0)
          Product::template Shared<Element, false>(s[b], from, rows);
        else
          Product::template Shared<Element, true>(s[b], from, rows);
      }
    }
    cuda::WgmmaCommit();
    cuda::WgmmaWait<0>();
    if constexpr (kNarrowsQuery<S, T>) {
#pragma unroll
      for (auto& block : s) {
#pragma unroll
        for (int i = 0; i < kN / 2; ++i) block[i] *= shared_.codes.query_factor[i / 8];
      }
    }
  }

  // Weights of scores by the bases as they are, which `sums` get, too.
  __device__ __forceinline__ void Weigh(const Scores& s, float (&sums)[kOwn]) const {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      if (!Has(b)) continue;
      char* const rows = L::Weights(shared_, slot_, b * cuda::kWgmmaRows / 16 + warp_);
      const uint32_t at = cuda::PanelOffset(16, lane_ / 4, lane_ % 4 * 2);
#pragma unroll
      for (int i = 0; i < kN / 2; i += 2) {
        float x[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          x[e] = cuda::Exp2(fmaf(s[b][i + e], factor_, -base_[Own(i + e)]));
          sums[Own(i + e)] += x[e];
        }
        uint32_t pair[1];
        ToOperand<Element>(x, pair);
        *reinterpret_cast<uint32_t*>(rows + (at ^ i / 4 * 16) +
                                     i / 2 % 2 * 8 * cuda::kPanelRowBytes) = pair[0];
      }
    }
    cuda::FenceForAsyncReads();
  }
  // Of a clear tile after every row has seen a key. False if some weight is too large, or a NaN.
  __device__ __forceinline__ bool WeighByBases(const Scores& s) {
    float sums[kOwn] = {}, sum = 0.0f;
    Weigh(s, sums);
#pragma unroll
    for (const float x : sums) sum += x;
    if (threadIdx.x % cuda::kWarpgroupThreads == 0) shared_.few_raised[slot_] = false;
    if (cuda::BarrierOr(OwnBarrier<S>(0), cuda::kWarpgroupThreads, !(sum <= Rows::kMostWeight)))
      return false;
#pragma unroll
    for (int c = 0; c < kOwn; ++c) l_[c] += sums[c];
    return true;
  }
  // Of any tile. The bases, which all warps share, rise where some score exceeds them.
  __device__ __forceinline__ void WeighAny(Scores& s, int first_key, uint32_t boxes, bool clear) {
    if (!logit_.folds()) {
#pragma unroll
      for (auto& block : s) logit_.Apply(block);
      if (p_.alibi_slopes.data) SubtractAlibi(s, first_key);
    }
    if (!clear) Mask(s, first_key, boxes);
    RaiseBases(s);
    Weigh(s, l_);
    SyncConsumer();
  }
  __device__ __forceinline__ void RaiseBases(const Scores& s) {
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      float top = -INFINITY;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        if (Has(b)) top = fmaxf(top, fmaxf(s[b][First(c)], s[b][First(c) + 2]));
      }
      top = OverKeys(top, [](float x, float y) { return fmaxf(x, y); });
      if (lane_ < 4) shared_.few_of_warp[warp_][RowOf(c, lane_)] = top;
    }
    SyncConsumer();
    if (threadIdx.x % cuda::kWarpgroupThreads == 0) shared_.few_raised[slot_] = true;
    bool unseen = false;
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      const int row = RowOf(c, lane_);
      float x = -INFINITY, kept = 1.0f;
#pragma unroll
      for (int warp = 0; warp < 4; ++warp) x = fmaxf(x, shared_.few_of_warp[warp][row]);
      x *= factor_;
      if (x > base_[c]) {
        const float base = x + Rows::kSlack<Element>;
        kept = cuda::Exp2(base_[c] - base);
        base_[c] = base;
        l_[c] *= kept;
      }
      if (warp_ == 0 && lane_ < 4) shared_.few_kept[slot_][row] = kept;
      unseen |= base_[c] == Rows::kUnseen;
    }
    settled_ = logit_.folds() && !__any_sync(0xffffffffu, unseen);
  }
  // Of the warp's lanes that have the same rows.
  template <class Reduce>
  static __device__ __forceinline__ float OverKeys(float x, Reduce reduce) {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2)
      x = reduce(x, __shfl_xor_sync(0xffffffffu, x, distance));
    return x;
  }

  // As in softmax.cuh.
  __device__ __forceinline__ void Mask(Scores& s, int first_key, uint32_t boxes) const {
    const int lane = Anew(lane_);
    const Band band = BandOf(task_.sequence, plan_);
    const int len_k = task_.sequence.len_k, first = first_key + FirstKey();
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      const int token = sm90::RowOf(p_, task_, RowOf(c, lane)).token;
      const int begin = band.BeginOf(token) - first, end = band.EndOf(token, len_k) - first;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int i = First(c); i <= First(c) + 2; i += 2)
          if (KeyOf(b, i) < begin || KeyOf(b, i) >= end) s[b][i] = -INFINITY;
      }
    }
    if (boxes == ~0u) return;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < kN / 2; ++i)
        if (!(boxes >> ((FirstKey() + KeyOf(b, i)) >> plan_.box_shift) & 1)) s[b][i] = -INFINITY;
    }
  }
  __device__ __forceinline__ void SubtractAlibi(Scores& s, int first_key) const {
    const int lane = Anew(lane_);
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      const TileRow row = sm90::RowOf(p_, task_, RowOf(c, lane));
      const float slope = p_.alibi_slopes.At(task_.sequence.index, row.head) * kLog2e;
      const int distance =
          static_cast<int>(PositionOf(task_.sequence, row.token)) - first_key - FirstKey();
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int i = First(c); i <= First(c) + 2; i += 2)
          s[b][i] -= slope * static_cast<float>(abs(distance - KeyOf(b, i)));
      }
    }
  }

  // The sums of each warp's weights, and the bases.
  __device__ __forceinline__ void Leave() {
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      const float l = OverKeys(l_[c], [](float x, float y) { return x + y; });
      if (lane_ >= 4) continue;
      shared_.few_of_warp[warp_][RowOf(c, lane_)] = l;
      if (warp_ == 0) shared_.few_base[RowOf(c, lane_)] = base_[c];
    }
  }

  const Params& p_;
  const LaunchPlan& plan_;
  Shared<S>& shared_;
  const Task& task_;
  const ToLogit& logit_;
  const float factor_;
  const int warp_, lane_;
  int slot_ = 0;
  bool settled_ = false;        // scores are products times a factor, and all rows have seen a key
  float base_[kOwn], l_[kOwn];  // l of the thread's keys
};

}  // namespace intarsia::attention::sm90
