// Products with weights in codes by wgmma, or mma.sync for few rows:
//   out[row, column] = sum_i x[row, i] w[column, i] + bias[column] + residual[row, column]
//   (matmul/quantized.h)
// for multiples of 128 columns; x, results, bias, residual and factors begin at multiples of 16
// bytes (PlanWarpgroups):
//
//   format   columns of a group          scales               zeros           rows
//   u4b8     32, 64, 128 and multiples   2 or 4 bytes         none            any
//   u4       128 and multiples           2 or 4 bytes         points, bytes   any
//   u4, u5   32, 64, 128 and multiples   f16, or u8 x outer   minimums, so    any
//   u4       32, 64, 128 and multiples   2 or 4 bytes         minimums, so    more than 8, by wgmma
//   u5b16    32, 64, 128 and multiples   f16                  none            any
//   u6b32    16                          i8 x outer           none            any
//   i8       32, 64, 128 and multiples   2 or 4 bytes         none            any
//   e4m3     128 and multiples           2 or 4 bytes         none            more than 8, by wgmma
//   e2m1     32, x in bf16               e8m0                 none            any
//   e2m1     16, x in bf16               e4m3                 none            any
//
// Outer factors, in f16, are of multiples of 128 columns: GGUF's super-blocks. nvfp4's (the last
// line) are of rows, or one for all, and multiply sums at the end.
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
// those of each block of 32 columns, or step of 16. Points are taken from codes as they become
// numbers. Minimums multiply sums of x, by blocks: with an infinite x results may be NaN. Scales of
// mxfp4 and nvfp4 multiply codes, which bf16 holds exactly below 2^128.
//
// mma.sync (codes_block.cuh) has up to 16 rows, but for those of the table, since wgmma with A in
// registers takes as long for 8 rows as for 16. A multiprocessor has room for several CTAs
// (WarpgroupsCtas).
//
// With a gating the tiles of a CTA are those of gates, then those of their ups.
//
// Codes in registers, fed by copies ahead of them, are Marlin's design (Frantar et al., 2024), on
// wgmma Machete's.
#pragma once
#include <utility>

#include "src/matmul/cuda/sm90/codes_block.cuh"
#include "src/matmul/cuda/sm90/lane_factors.cuh"
#include "src/matmul/cuda/sm90/lane_pairs.cuh"
#include "src/matmul/cuda/sm90/register_products.cuh"
#include "src/matmul/cuda/sm90/warpgroups_stage.cuh"
#include "src/matmul/cuda/sm90/x_sums.cuh"

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
        block_(OpaqueZero(p), static_cast<int>(threadIdx.x % 4)),
        part_(number % S::kParts),
        tile_(number / S::kParts * 4 * S::kEach +
              static_cast<int>(threadIdx.x % cuda::kWarpgroupThreads) / 32),
        factors_(p, GroupShift(p), tile_, static_cast<int>(threadIdx.x % 32) / 4) {
    const int lane = static_cast<int>(threadIdx.x % 32), r = lane / 4, c = lane % 4;
    codes_at_ = Kept(tile_ * S::kBoxBytes + (S::kByWarps ? Block::Lane::CodesAt(r, c) : 8 * r));
    const int2 x = Block::Lane::XAt(lane);
    x_at_ = Kept(x.x * 128 + (x.y ^ x.x) * 16);
  }

  __device__ __forceinline__ void Run() {
    Clear(all_);
    if constexpr (S::kScalesCodes)
      AddScaledCodes();
    else if constexpr (S::kMayHaveOuters)
      AddBlocksWithOuters();
    else if constexpr (!S::kWide && !S::kByWarps)
      AddBlocks<DType::kOther>();
    else if (p_.scales.dtype == DType::kF16)
      AddScaledSums<DType::kF16>();
    else if (p_.scales.dtype == DType::kBF16)
      AddScaledSums<DType::kBF16>();
    else
      AddScaledSums<DType::kF32>();
  }

  // By all that multiply, when all stages are read.
  __device__ __forceinline__ void WriteSums() const {
    constexpr float kOne = 1.0f / (S::kIsNvFp4 ? kNvFp4Unit : Pairs::kUnit);
    const int lane = static_cast<int>(threadIdx.x % 32), r = lane / 4, c = lane % 4;
#pragma unroll
    for (int each = 0; each < S::kEach; ++each) {
      const float2 outer = NvFp4Outer(each);
#pragma unroll
      for (int i = 0; i < kSums; i += 4)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = (tile_ + 4 * each) * static_cast<int>(kTileRows) + 2 * r;
          *reinterpret_cast<float2*>(shared_.sums[part_] + (2 * i + 2 * c + e) * S::kPitch +
                                     column) = make_float2(all_[each][i + e] * kOne * outer.x,
                                                           all_[each][i + 2 + e] * kOne * outer.y);
        }
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
  __device__ __forceinline__ void AddBlocksWithOuters() {
    const auto add = [&]<DType kScale>() {
      if constexpr (S::kByWarps)
        AddBlocksByWarps<kScale>();
      else
        AddBlocks<kScale>();
    };
    if (p_.scales.outer)
      add.template operator()<S::kOfSteps ? DType::kI8 : DType::kU8>();
    else if constexpr (!S::kOfSteps)
      add.template operator()<S::kGgufFactors ? DType::kF16 : DType::kOther>();
  }
  template <DType kScale>
  __device__ __forceinline__ void AddStages() {
    float group[S::kEach][kSums];
    ForEachStage([&](int stage, uint32_t) {
      if constexpr (S::kByWarps && S::kPoints) {
        const uint2 biases[] = {factors_.Biases(FactorsOf(stage), 0),
                                factors_.Biases(FactorsOf(stage), 1)};
        MultiplyByWarps(stage, group, [&](int each) { return biases[each]; });
      } else if constexpr (S::kByWarps) {
        MultiplyByWarps(stage, group);
      } else {
        uint32_t a[kSteps][4];
        if constexpr (S::kPoints)
          Decode(stage, a, factors_.Biases(FactorsOf(stage), 0));
        else
          Decode(stage, a);
        Multiply<false>(stage, a, group[0]);
      }
      float2 scales[S::kEach];
#pragma unroll
      for (int each = 0; each < S::kEach; ++each)
        scales[each] = factors_.template ScaleOfStage<kScale>(FactorsOf(stage), each);
      if constexpr (!S::kByWarps) cuda::WgmmaWait<0>();
      shared_.ring.ReleaseByWarp(stage);
#pragma unroll
      for (int each = 0; each < S::kEach; ++each) AddScaled(scales[each], group[each], all_[each]);
    });
  }

  // Any groups: sums of each block of 32 columns, or step of 16, are scaled.
  template <DType kScale>
  __device__ __forceinline__ void AddBlocks() {
    ForEachStage([&](int stage, uint32_t parity) {
      if constexpr (S::kSumsX) {
        const int own = static_cast<int>(threadIdx.x % 4);  // the lane's block
        AddMinimums(factors_.template Minimum<kScale>(FactorsOf(stage), 0, own), shared_, stage,
                    parity, all_[0]);
        if constexpr (S::kDecoded == 2) cuda::WgmmaWait<0>();  // registers, again
      }
      [&]<int... kOf>(std::integer_sequence<int, kOf...>) {
        (AddPart<kScale, kOf>(stage), ...);
      }(std::make_integer_sequence<int, kSteps / S::kDecoded>());
      shared_.ring.ReleaseByWarp(stage);
    });
  }
  template <DType kScale, int kPart>
  __device__ __forceinline__ void AddPart(int stage) {
    constexpr int kCount = S::kOfSteps ? 1 : 2;  // steps of a group, or part of one
    uint32_t a[S::kDecoded][4];
#pragma unroll
    for (int step = 0; step < S::kDecoded; ++step)
      pairs_.Decode(BlockOf(stage, (kPart * S::kDecoded + step) / 2), step % 2, a[step]);
    FinishDecoding(a);
    const auto add = [&]<int kGroup>() {
      float group[kSums];
      MultiplySteps<typename S::T, S::kRows, kCount * kGroup, kCount, false>(
          shared_.stages[stage].x, [&](int step) { return a[step % S::kDecoded]; }, group);
      const float2 scale = factors_.template Scale<kScale>(FactorsOf(stage), 0, kGroup);
      cuda::WgmmaWait<0>();
      AddScaled(scale, group, all_[0]);
    };
    constexpr int kGroups = S::kDecoded / kCount;
    [&]<int... kOf>(std::integer_sequence<int, kOf...>) {
      (add.template operator()<kPart * kGroups + kOf>(), ...);
    }(std::make_integer_sequence<int, kGroups>());
  }
  template <DType kScale>
  __device__ __forceinline__ void AddBlocksByWarps() {
    ForEachStage([&](int stage, uint32_t) {
      const auto scale = [&](int each, int group) {
        return factors_.template Scale<kScale>(FactorsOf(stage), each, group);
      };
      if constexpr (S::kMinimums)
        AddScaledBlocksByWarps(stage, scale, [&](int each, int group) {
          return factors_.template MinimumsOf<kScale>(FactorsOf(stage), each, group);
        });
      else
        AddScaledBlocksByWarps(stage, scale);
      shared_.ring.ReleaseByWarp(stage);
    });
  }
  // scale(each, group), minimum(each, group), if given: as CodesBlock takes them.
  template <class... FactorOf>
  __device__ __forceinline__ void AddScaledBlocksByWarps(int stage, FactorOf... factors) {
    block_.template AddScaledStage<S::kOfSteps>(
        [&](int block, typename Block::X& x) { LoadX(stage, block, x); },
        [&](int block) { return CodesOfTiles(stage, block); }, all_, factors...);
  }
  __device__ __forceinline__ void AddScaledCodes() {
    ForEachStage([&](int stage, uint32_t) {
      if constexpr (S::kByWarps && S::kIsNvFp4) {
        AddNvFp4ByWarps(stage);
      } else if constexpr (S::kByWarps) {
        AddScaledByWarps(stage);
      } else {
        uint32_t a[kSteps][4];
        const char* const scales = factors_.ByteScales(FactorsOf(stage));
        if constexpr (S::kIsNvFp4)
          DecodeNvFp4(pairs_, BlockOf(stage, 0), scales, factors_.pair_in_tile(), a);
        else
          DecodeScaled(pairs_, BlockOf(stage, 0), scales, factors_.pair_in_tile(), a);
        Multiply<true>(stage, a, all_[0]);
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
        powers[each][block] = factors_.ByteScalePair(FactorsOf(stage), each, block);
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
  // A lane's eight columns of a block are of one step.
  __device__ __forceinline__ void AddNvFp4ByWarps(int stage) {
    const int step = static_cast<int>(threadIdx.x % 4) / 2;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
      AddBlockByWarps(stage, block, all_, [&](int each) {
        return NvFp4Scales<S::kType>(
            factors_.ByteScalePair(FactorsOf(stage), each, 2 * block + step));
      });
  }
  // nvfp4's outer scales, which multiply sums at the end.
  __device__ __forceinline__ float2 NvFp4Outer(int each) const {
    if constexpr (!S::kIsNvFp4) return {1.0f, 1.0f};
    const WarpgroupsHalves<S> halves(p_);
    const int tile = tile_ + 4 * each, half = tile / halves.cta_tiles;
    const int64_t of_half = task_.first_tile + tile % halves.cta_tiles;
    if (of_half >= halves.tiles) return {1.0f, 1.0f};
    return NvFp4OuterOf(p_, 0, half * halves.tiles + of_half, 2 * factors_.pair_in_tile());
  }
  // `add` has to release the stage.
  template <class Add>
  __device__ __forceinline__ void ForEachStage(Add add) {
    cuda::RingPlace<S::kStages> place;
    place.Advance(part_);
#pragma unroll 1
    for (int i = task_.begin + part_; i < task_.end; i += S::kParts) {
      shared_.ring.full[place.index].Wait(place.parity);
      add(place.index, place.parity);
#pragma unroll
      for (int part = 0; part < S::kParts; ++part) place.Next();
    }
  }

  __device__ __forceinline__ const char* FactorsOf(int stage) const {
    return shared_.factors[stage];
  }
  // The lane's codes of a block of a stage.
  __device__ __forceinline__ const char* BlockOf(int stage, int block) const {
    const int at = block * kBlockBytes<S::kFormat>;
    return shared_.stages[stage].codes[at / S::kBoxBytes][0] + codes_at_ + at % S::kBoxBytes;
  }
  // A warp has a tile. biases: none, or of rows 2r and 2r + 1.
  template <class... Biases>
  __device__ __forceinline__ void Decode(int stage, uint32_t (&a)[kSteps][4],
                                         Biases... biases) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      pairs_.Decode(BlockOf(stage, step / 2), step % 2, a[step], biases...);
  }
  template <class... Biases>
  __device__ __forceinline__ void MultiplyByWarps(int stage, float (&sums)[S::kEach][kSums],
                                                  Biases... biases) const {
    Clear(sums);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) AddBlockByWarps(stage, block, sums, biases...);
  }
  // operands: none, or what CodesBlock takes.
  template <class... Operands>
  __device__ __forceinline__ void AddBlockByWarps(int stage, int block,
                                                  float (&sums)[S::kEach][kSums],
                                                  Operands... operands) const {
    typename Block::X x;
    LoadX(stage, block, x);
    block_.MultiplyAdd(CodesOfTiles(stage, block), x, sums, operands...);
  }
  // The copy engine swaps 16 bytes of a row of a panel by the row's number.
  __device__ __forceinline__ void LoadX(int stage, int block, typename Block::X& to) const {
    const char* const x = shared_.stages[stage].x + block / 2 * (S::kXBytes / 2);
    block_.LoadX([&](int n) { return x + n * 1024 + (x_at_ ^ block % 2 * 64); }, to);
  }
  __device__ __forceinline__ auto CodesOfTiles(int stage, int block) const {
    return [codes = BlockOf(stage, block)](int each) { return codes + each * 4 * S::kBoxBytes; };
  }
  static __device__ __forceinline__ void Clear(float (&sums)[S::kEach][kSums]) {
#pragma unroll
    for (auto& of_tile : sums)
#pragma unroll
      for (float& sum : of_tile) sum = 0.0f;
  }
  // All steps, in flight afterwards. All codes are decoded before the first product begins, not
  // between products.
  template <bool kAdd>
  __device__ __forceinline__ void Multiply(int stage, uint32_t (&a)[kSteps][4],
                                           float (&sums)[kSums]) const {
    FinishDecoding(a);
    MultiplySteps<typename S::T, S::kRows, 0, kSteps, kAdd>(
        shared_.stages[stage].x, [&](int step) { return a[step]; }, sums);
  }

  const QuantizedParams& p_;
  const WarpgroupsTask& task_;
  WarpgroupsShared<S>& shared_;
  const Pairs pairs_;
  const Block block_;
  const int part_;
  const int tile_;
  const LaneFactors<S> factors_;
  int codes_at_, x_at_;  // where a stage has the lane's codes, of the first line, and its x
  float all_[S::kEach][kSums];
};

}  // namespace intarsia::matmul::sm90
