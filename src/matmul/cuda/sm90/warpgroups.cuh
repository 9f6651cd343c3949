// Products with weights in codes by wgmma, or mma.sync for few rows:
//   out[row, column] = sum_i x[row, i] w[column, i] + bias[column] + residual[row, column]
//   (matmul/quantized.h)
// for multiples of 128 columns; x, results, bias, residual and factors begin at multiples of 16
// bytes (PlanWarpgroups):
//
//   format     columns of a group          zeros                    rows
//   u4b8       128 and multiples           none                     any; up to 16 by mma.sync
//   u4         128 and multiples           points, bytes            any; up to 16 by mma.sync
//   u4         32, 64, 128 and multiples   minimums, 2 or 4 bytes   any, by wgmma
//   u4b8       32, 64                      none                     any; up to 16 by mma.sync
//   i8         32, 64, 128 and multiples   none                     any, by wgmma
//   e4m3       128 and multiples           none                     any, by wgmma
//   mxfp4      32, x in bf16               none                     any; up to 16 by mma.sync
//
// One thread has the copy engine fetch codes, factors and rows of x, a stage of 128 columns at a
// time.
//
// wgmma: warpgroups decode codes into registers, which are its A (lane_pairs.cuh), 64 rows of w at
// a time. B are rows of x as they lie in memory. While the tensor cores multiply, integer units and
// those for halves are at less than half of their speed, and f32's products have to wait: what
// counts is how few instructions decode.
//
// Scales multiply sums in f32: those of a stage, where groups of integers or e4m3 end with it, else
// those of each block of 32 columns. Points are taken from codes as they become numbers. Minimums
// multiply sums of x, by blocks: with an infinite x results may be NaN. Scales of mxfp4 multiply
// codes, which bf16 holds exactly below 2^128.
//
// mma.sync (codes_block.cuh) has up to 16 rows, since wgmma with A in registers takes as long for 8
// rows as for 16. A multiprocessor has room for several CTAs (WarpgroupsCtas).
//
// With a gating the tiles of a CTA are those of gates, then those of their ups.
//
// Codes in registers, fed by copies ahead of them, are Marlin's design (Frantar et al., 2024), on
// wgmma Machete's.
#pragma once
#include "src/matmul/cuda/sm90/codes_block.cuh"
#include "src/matmul/cuda/sm90/lane_pairs.cuh"
#include "src/matmul/cuda/sm90/register_products.cuh"
#include "src/matmul/cuda/sm90/warpgroups_stage.cuh"

namespace intarsia::matmul::sm90 {

// Four warps that compute 64 kEach rows of w, of each part's stages.
template <class S>
class WarpgroupsProduct {
 public:
  static constexpr int kSums = S::kRows / 2;
  static constexpr int kSteps = kStageColumns / cuda::kWgmmaStep;
  static constexpr int kBlocks = kStageColumns / static_cast<int>(kBlockColumns);
  using Pairs = LanePairs<S::kFormat, S::kType>;
  using Block = CodesBlock<S::kFormat, S::kType, S::kRows, S::kEach>;

  // `number`: of the warpgroup.
  __device__ __forceinline__ WarpgroupsProduct(const QuantizedParams& p, const WarpgroupsTask& task,
                                               WarpgroupsShared<S>& shared, int number)
      : p_(p),
        task_(task),
        shared_(shared),
        pairs_(OpaqueZero(p), static_cast<int>(threadIdx.x % 4)),
        block_(OpaqueZero(p)),
        part_(number % S::kParts) {
    const int thread = static_cast<int>(threadIdx.x % cuda::kWarpgroupThreads), lane = thread % 32;
    const int r = lane / 4, c = lane % 4;
    tile_ = number / S::kParts * 4 * S::kEach + thread / 32;
    pair_ = Kept(tile_ * static_cast<int>(kTileRows) / 2 + r);
    const int line = S::kByWarps ? c : 0;
    codes_at_ = Kept(tile_ * S::kBoxBytes + line * static_cast<int>(kLineBytes) + 8 * r);
    x_at_ = Kept(r * 128 + (c ^ r) * 16);
  }

  __device__ __forceinline__ void Run() {
    Clear(all_);
    if constexpr (S::kScalesCodes)
      AddScaledCodes();
    else if constexpr (!S::kWide && !S::kByWarps)
      AddBlocks();
    else if (p_.scales.dtype == DType::kF16)
      AddScaledSums<DType::kF16>();
    else if (p_.scales.dtype == DType::kBF16)
      AddScaledSums<DType::kBF16>();
    else
      AddScaledSums<DType::kF32>();
  }

  // By all that multiply, when all stages are read.
  __device__ __forceinline__ void WriteSums() const {
    constexpr float kOne = 1.0f / Pairs::kUnit;
    const int lane = static_cast<int>(threadIdx.x % 32), r = lane / 4, c = lane % 4;
#pragma unroll
    for (int each = 0; each < S::kEach; ++each)
#pragma unroll
      for (int i = 0; i < kSums; i += 4)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = (tile_ + 4 * each) * static_cast<int>(kTileRows) + 2 * r;
          *reinterpret_cast<float2*>(shared_.sums[part_] + (2 * i + 2 * c + e) * S::kPitch +
                                     column) =
              make_float2(all_[each][i + e] * kOne, all_[each][i + 2 + e] * kOne);
        }
  }

 private:
  template <DType kScale>
  __device__ __forceinline__ void AddScaledSums() {
    if constexpr (S::kWide)
      AddStages<kScale>();
    else
      AddBlocksByWarps<kScale>();
  }
  template <DType kScale>
  __device__ __forceinline__ void AddStages() {
    float group[S::kEach][kSums];
    ForEachStage([&](int stage) {
      if constexpr (S::kByWarps && S::kPoints) {
        const uint2 biases[] = {BiasesOf(stage, 0), BiasesOf(stage, 1)};
        MultiplyByWarps(stage, group, [&](int each) { return biases[each]; });
      } else if constexpr (S::kByWarps) {
        MultiplyByWarps(stage, group);
      } else {
        uint32_t a[kSteps][4];
        if constexpr (S::kPoints)
          Decode(stage, a, BiasesOf(stage, 0));
        else
          Decode(stage, a);
        Multiply<0, kSteps, false>(stage, a, group[0]);
      }
      float2 scales[S::kEach];
#pragma unroll
      for (int each = 0; each < S::kEach; ++each)
        scales[each] = ScalePairOf<kScale>(shared_.factors[stage],
                                           pair_ + each * 4 * static_cast<int>(kTileRows) / 2);
      if constexpr (!S::kByWarps) cuda::WgmmaWait<0>();
      shared_.ring.ReleaseByWarp(stage);
#pragma unroll
      for (int each = 0; each < S::kEach; ++each) AddScaled(scales[each], group[each], all_[each]);
    });
  }

  // Any groups: sums of each block of 32 columns are scaled. Minimums multiply sums of x, which are
  // products with ones.
  __device__ __forceinline__ void AddBlocks() {
    const int shift = GroupShift();
    ForEachStage([&](int stage) {
      uint32_t a[kSteps][4];
      Decode(stage, a);
      const auto add = [&]<int kBlock>() {
        float group[kSums], of_x[S::kMinimums ? kSums : 1];
        Multiply<2 * kBlock, 2, false>(stage, a, group);
        if constexpr (S::kMinimums) SumRows<2 * kBlock, 2>(stage, of_x);
        const int at = (tile_ * (4 >> shift) + (kBlock >> shift)) * static_cast<int>(kTileRows);
        const float2 scale = FactorPair(shared_.factors[stage], p_.scales.dtype, at);
        float2 minimum{};
        if constexpr (S::kMinimums)
          minimum = FactorPair(shared_.factors[stage] + S::kMostScaleBytes, p_.zeros.dtype, at);
        cuda::WgmmaWait<0>();
        AddScaled(scale, group, all_[0]);
        if constexpr (S::kMinimums)
          AddScaled({minimum.x * Pairs::kUnit, minimum.y * Pairs::kUnit}, of_x, all_[0]);
      };
      add.template operator()<0>();
      add.template operator()<1>();
      add.template operator()<2>();
      add.template operator()<3>();
      shared_.ring.ReleaseByWarp(stage);
    });
  }
  // Blocks of 32 columns are of group `block` >> this of a stage.
  __device__ __forceinline__ int GroupShift() const {
    return p_.group == kBlockColumns ? 0 : p_.group == 2 * kBlockColumns ? 1 : 2;
  }
  template <DType kScale>
  __device__ __forceinline__ void AddBlocksByWarps() {
    constexpr int kBytes = kScale == DType::kF32 ? 4 : 2;
    const int shift = GroupShift();
    ForEachStage([&](int stage) {
      AddScaledBlocksByWarps(stage, [&](int each, int block) {
        const int at = ((tile_ + 4 * each) * (kBlocks >> shift) + (block >> shift)) *
                       static_cast<int>(kTileRows) * kBytes;
        return ScalePairOf<kScale>(shared_.factors[stage] + at, pair_ % 8);
      });
      shared_.ring.ReleaseByWarp(stage);
    });
  }
  // scale(each, block): of rows 2r and 2r + 1.
  template <class ScaleOf>
  __device__ __forceinline__ void AddScaledBlocksByWarps(int stage, ScaleOf scale) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      float group[S::kEach][kSums];
      Clear(group);
      AddBlockByWarps(stage, block, group);
#pragma unroll
      for (int each = 0; each < S::kEach; ++each)
        AddScaled(scale(each, block), group[each], all_[each]);
    }
  }
  // Of rows 2r and 2r + 1 of a tile, whose first factor is number `at`.
  __device__ __forceinline__ float2 FactorPair(const char* factors, DType dtype, int at) const {
    return ScalePair(factors + at * (dtype == DType::kF32 ? 4 : 2), dtype, pair_ % 8);
  }
  __device__ __forceinline__ void AddScaledCodes() {
    ForEachStage([&](int stage) {
      if constexpr (S::kByWarps) {
        AddScaledByWarps(stage);
      } else {
        uint32_t a[kSteps][4];
        DecodeScaled(pairs_, CodesOf(stage, 0),
                     shared_.factors[stage] + tile_ * kBlocks * static_cast<int>(kTileRows),
                     pair_ % 8, a);
        Multiply<0, kSteps, true>(stage, a, all_[0]);
        cuda::WgmmaWait<0>();
      }
      shared_.ring.ReleaseByWarp(stage);
    });
  }
  // Scales above 1 multiply sums: beyond 2 bf16 has no such factor of codes (E2M1Scale).
  __device__ __forceinline__ void AddScaledByWarps(int stage) {
    uint32_t powers[S::kEach][kBlocks], any = 0;  // of rows 2r and 2r + 1, a byte each
#pragma unroll
    for (int each = 0; each < S::kEach; ++each)
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const char* const of_block =
            shared_.factors[stage] +
            ((tile_ + 4 * each) * kBlocks + block) * static_cast<int>(kTileRows);
        powers[each][block] = reinterpret_cast<const uint16_t*>(of_block)[pair_ % 8];
        any |= powers[each][block];
      }
    if (!__any_sync(0xffffffffu, (any & 0x8080u) != 0)) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block)
        AddBlockByWarps(stage, block, all_,
                        [&](int each) { return E2M1Scales<S::kType>(powers[each][block]); });
      return;
    }
    AddScaledBlocksByWarps(stage,
                           [&](int each, int block) { return PowersOf(powers[each][block]); });
  }
  // `add` has to release the stage.
  template <class Add>
  __device__ __forceinline__ void ForEachStage(Add add) {
    cuda::RingPlace<S::kStages> place;
    place.Advance(part_);
#pragma unroll 1
    for (int i = task_.begin + part_; i < task_.end; i += S::kParts) {
      shared_.ring.full[place.index].Wait(place.parity);
      add(place.index);
#pragma unroll
      for (int part = 0; part < S::kParts; ++part) place.Next();
    }
  }

  // Of a stage, the lane's codes from a step's first line on.
  __device__ __forceinline__ const char* CodesOf(int stage, int step) const {
    const int at = step * Pairs::kStepBytes;
    return shared_.stages[stage].codes[at / S::kBoxBytes][0] + codes_at_ + at % S::kBoxBytes;
  }
  // A warp has a tile. biases: none, or of rows 2r and 2r + 1.
  template <class... Biases>
  __device__ __forceinline__ void Decode(int stage, uint32_t (&a)[kSteps][4],
                                         Biases... biases) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      pairs_.Decode(CodesOf(stage, step), a[step], biases...);
  }
  // Of rows 2r and 2r + 1 of a tile.
  __device__ __forceinline__ uint2 BiasesOf(int stage, int each) const {
    return PointBiases<S::kType>(shared_.factors[stage] + S::kMostScaleBytes,
                                 pair_ + each * 4 * static_cast<int>(kTileRows) / 2);
  }
  template <class... Biases>
  __device__ __forceinline__ void MultiplyByWarps(int stage, float (&sums)[S::kEach][kSums],
                                                  Biases... biases) const {
    Clear(sums);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) AddBlockByWarps(stage, block, sums, biases...);
  }
  // The copy engine swaps 16 bytes of a row of a panel by the row's number. operands: none, or
  // what CodesBlock takes.
  template <class... Operands>
  __device__ __forceinline__ void AddBlockByWarps(int stage, int block,
                                                  float (&sums)[S::kEach][kSums],
                                                  Operands... operands) const {
    const char* const x = shared_.stages[stage].x + block / 2 * (S::kXBytes / 2);
    const char* const codes = CodesOf(stage, 0) + 4 * block * kLineBytes;
    block_.MultiplyAdd([&](int each) { return codes + each * 4 * S::kBoxBytes; },
                       [&](int n) { return x + n * 1024 + (x_at_ ^ block % 2 * 64); }, sums,
                       operands...);
  }
  static __device__ __forceinline__ void Clear(float (&sums)[S::kEach][kSums]) {
#pragma unroll
    for (auto& of_tile : sums)
#pragma unroll
      for (float& sum : of_tile) sum = 0.0f;
  }
  // kCount steps from kFirst on, in flight afterwards. All codes are decoded before the first
  // product begins, not between products.
  template <int kFirst, int kCount, bool kAdd>
  __device__ __forceinline__ void Multiply(int stage, uint32_t (&a)[kSteps][4],
                                           float (&sums)[kSums]) const {
    if constexpr (kFirst == 0) FinishDecoding(a);
    MultiplySteps<typename S::T, S::kRows, kFirst, kCount, kAdd>(
        shared_.stages[stage].x, [&](int step) { return a[step]; }, sums);
  }
  // Sums of rows of x over kCount steps, in flight afterwards; the same for each row of w.
  template <int kFirst, int kCount>
  __device__ __forceinline__ void SumRows(int stage, float (&sums)[kSums]) const {
    constexpr uint32_t kOnes = S::kType == DType::kF16 ? 0x3c003c00u : 0x3f803f80u;
    const uint32_t ones[] = {kOnes, kOnes, kOnes, kOnes};
    MultiplySteps<typename S::T, S::kRows, kFirst, kCount, false>(
        shared_.stages[stage].x, [&](int) { return ones; }, sums);
  }

  const QuantizedParams& p_;
  const WarpgroupsTask& task_;
  WarpgroupsShared<S>& shared_;
  const Pairs pairs_;
  const Block block_;
  const int part_;
  int tile_;
  // Of the lane: its pair of rows among those of all tiles, and where a stage has its codes, of the
  // first line, and its x.
  int pair_, codes_at_, x_at_;
  float all_[S::kEach][kSums];
};

}  // namespace intarsia::matmul::sm90
