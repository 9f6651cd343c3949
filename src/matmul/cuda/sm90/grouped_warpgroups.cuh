// Products of groups of many rows, each with a matrix of its own in codes of 4 or 8 bits, by wgmma:
//   out[row, column] = sum_i x[taken(row), i] w[group of row][column, i] + bias[group][column]
// or, with a gating, act(gate, up) of two such sums (matmul/quantized.h). Multiples of 32 columns;
// u4b8, i8, e4m3, or u4 with points in bytes, in groups of 128 columns and multiples of it; and
// mxfp4 and nvfp4 for x in bf16.
//
// Tasks, copies of x and the way of the results are those of plain products of groups
// (grouped.cuh). Codes of a stage of 128 columns lie in w's place. Consumers decode them, half a
// stage at a time, into registers, which are wgmma's A (lane_pairs.cuh), and B are rows of x. So
// each code is decoded once for up to 96 rows.
//
// Groups of whole stages: a stage's sums are a group's, or part of one, whose scale multiplies them
// in f32. Its point is taken from codes as they become numbers. mxfp4 and nvfp4: scales multiply
// codes, which bf16 holds exactly below 2^128, and the next half is decoded while the last one's
// products are in flight. Outer scales of nvfp4 multiply sums at the end.
#pragma once
#include <utility>

#include "src/core/round.h"
#include "src/matmul/cuda/sm90/codes_block.cuh"
#include "src/matmul/cuda/sm90/codes_boxes.cuh"
#include "src/matmul/cuda/sm90/lane_pairs.cuh"
#include "src/matmul/cuda/sm90/register_products.cuh"
#include "src/matmul/cuda/sm90/results.cuh"

namespace intarsia::matmul::sm90 {

// Of a stage: codes, scales and two boxes of points.
constexpr int CodesStageBytes(int tiles, Format format, GroupEnds ends) {
  const int scales = MostStageScaleBytes(format, ends);
  return RoundUp<int>(tiles * (TileBoxes(format) * TileBoxBytes(format) + scales) + 2 * 128,
                      cuda::kSwizzleAtomBytes);
}
// Consumers have 64 columns each. Four of them find room with few rows. With many, integers have
// two sums a result in registers, and beyond 96 rows ptxas serializes products of mxfp4 (C7512).
template <QuantizedShape kShape, Format kFormat, GroupEnds kEnds>
using RowsOfCodes =
    GroupedShapeOf<GroupedSizes{.most_steps = kShape.rows / 16,
                                .blocks = 1,
                                .panels = 2,
                                .stages = BitsOf(kFormat) == 8           ? 4
                                          : kShape == kFewWarpgroupsRows ? 6
                                                                         : 5,
                                .box_rows = 32,
                                .consumers = kShape.tiles / 4,
                                .staged_steps = 2,
                                .weight_bytes = CodesStageBytes(kShape.tiles, kFormat, kEnds),
                                .pairs = true}>;

// kEnds: of groups; kEach16 is nvfp4.
template <DType kType_, Format kFormat_, GroupEnds kEnds, QuantizedShape kShape>
struct GroupedWarpgroupsConfig : RowsOfCodes<kShape, kFormat_, kEnds>,
                                 StageFactors<kFormat_, kEnds, kShape.tiles> {
  using InStage = StageFactors<kFormat_, kEnds, kShape.tiles>;
  using T = cuda::DeviceT<kType_>;
  static constexpr DType kType = kType_;
  static constexpr Format kFormat = kFormat_;
  static constexpr int kTiles = kShape.tiles;
  // Where the second half of a stage's codes of a tile lies.
  static constexpr int kBoxBytes = TileBoxBytes(kFormat);
  static constexpr int kHalfBytes = TileBoxes(kFormat) == 2 ? kTiles * kBoxBytes : kBoxBytes / 2;
  static constexpr int kScaleBoxBytes = InStage::kBoxTiles * InStage::kMostScaleBytes;  // at most
  static constexpr int kFactorsAt = kTiles * TileBoxes(kFormat) * kBoxBytes;
  static_assert(kStageColumns == GroupedWarpgroupsConfig::kDepth);
  static_assert(kFactorsAt + InStage::kFactorBytes <= GroupedWarpgroupsConfig::kWeightBytes);
};

// A warpgroup that computes 64 of the columns of each task of its CTA, a warp a tile.
template <class S, bool kGated>
class GroupedWarpgroupsConsumer {
 public:
  using T = typename S::T;

  __device__ __forceinline__ GroupedWarpgroupsConsumer(const GroupedParams& p,
                                                       const QuantizedParams& each,
                                                       const GroupedCodesCut& cut,
                                                       Shared<S>& shared, int number)
      : each_(each),
        cut_(cut),
        shared_(shared),
        results_(p, shared, number),
        pairs_(OpaqueZero(each), static_cast<int>(threadIdx.x % 4)),
        pair_(static_cast<int>(threadIdx.x % 32) / 4) {
    const int warp = static_cast<int>(threadIdx.x / 32 % 4);
    // Gates, and their ups behind those of all consumers; or neighbors.
    box_ = cut.pairs ? warp / 2 : (4 * number + warp) / S::kBoxTiles;
    tile_ = cut.pairs ? 2 * number + warp % 2 : (4 * number + warp) % S::kBoxTiles;
    codes_at_ = Kept((box_ * S::kBoxTiles + tile_) * S::kBoxBytes + 8 * pair_);
  }

  // All tasks of the CTA.
  __device__ __forceinline__ void Run() {
    ForEachTask(shared_, [&](const Task<S>& task) {
      if (task.kind == Task<S>::kProduct)
        RunSteps(task, std::make_integer_sequence<int, S::kSteps / 2>());
      else
        results_.ClearRows(task.unit);
    });
  }

 private:
  using R = Results<S, T, kGated>;
  using Pairs = LanePairs<S::kFormat, S::kType>;
  static constexpr int kHalfSteps = kStageColumns / 2 / cuda::kWgmmaStep;
  using Half = uint32_t[kHalfSteps][4];  // of a lane's codes

  // wgmma's N is a constant: a loop for each second number of steps.
  template <int... kPairs>
  __device__ __forceinline__ void RunSteps(const Task<S>& task,
                                           std::integer_sequence<int, kPairs...>) {
    const int pairs = (S::Tiles::Steps(task.unit.rows) + 1) / 2;
    ((pairs == kPairs + 1 ? Compute<2 * (kPairs + 1)>(task) : void()), ...);
  }

  template <int kSteps>
  __device__ __forceinline__ void Compute(const Task<S>& task) {
    typename R::template Sums<kSteps> sums;
#pragma unroll
    for (float& sum : sums[0]) sum = 0.0f;
    if constexpr (S::kFormat == Format::kE2M1)
      AddScaledCodes(sums[0]);
    else
      AddGroups(sums[0]);
    if constexpr (S::kIsNvFp4) MultiplyByOuter(task.unit, sums[0]);
    results_.template Finish<kSteps>(task, sums);
  }

  template <int kSums>
  __device__ __forceinline__ void AddGroups(float (&all)[kSums]) {
#pragma unroll 1
    for (int i = 0; i < cut_.stages; ++i, place_.Next()) {
      shared_.stages.full[place_.index].Wait(place_.parity);
      const char* const stage = shared_.w[place_.index];
      float group[kSums];
      Half first, second;
      if constexpr (S::kPoints) {
        const uint2 biases = BiasesOf(stage);
        Decode(0, first, biases);
        Multiply<0, false>(first, group);
        Decode(1, second, biases);
      } else {
        Decode(0, first);
        Multiply<0, false>(first, group);
        Decode(1, second);
      }
      Multiply<1, true>(second, group);
      float2 scales = ScalePair(ScalesOf(stage), each_.scales.dtype, pair_);
      scales.x *= 1.0f / Pairs::kUnit, scales.y *= 1.0f / Pairs::kUnit;
      cuda::WgmmaWait<0>();
      shared_.stages.ReleaseByWarp(place_.index);
      AddScaled(scales, group, all);
    }
  }

  template <int kSums>
  __device__ __forceinline__ void AddScaledCodes(float (&all)[kSums]) {
    int before = 0;
#pragma unroll 1
    for (int i = 0; i < cut_.stages; ++i, place_.Next()) {
      shared_.stages.full[place_.index].Wait(place_.parity);
      Half first, second;
      DecodeScaled(0, first);
      Multiply<0, true>(first, all);
      cuda::WgmmaWait<1>();
      if (i > 0) shared_.stages.ReleaseByWarp(before);
      before = place_.index;
      DecodeScaled(1, second);
      Multiply<1, true>(second, all);
      cuda::WgmmaWait<1>();
    }
    cuda::WgmmaWait<0>();
    shared_.stages.ReleaseByWarp(before);
  }

  __device__ __forceinline__ const char* CodesOf(int half) const {
    return shared_.w[place_.index] + codes_at_ + half * S::kHalfBytes;
  }
  // Half of a stage's codes. biases: none, or what LanePairs::Decode takes.
  template <class... Biases>
  __device__ __forceinline__ void Decode(int half, Half& a, Biases... biases) const {
#pragma unroll
    for (int step = 0; step < kHalfSteps; ++step)
      pairs_.Decode(CodesOf(half) + step / 2 * kBlockBytes<S::kFormat>, step % 2, a[step],
                    biases...);
  }
  __device__ __forceinline__ void DecodeScaled(int half, Half& a) const {
    const char* const scales = ScalesOf(shared_.w[place_.index]);
    constexpr int kOfHalf = (S::kIsNvFp4 ? 4 : 2) * static_cast<int>(kTileRows);
    if constexpr (S::kIsNvFp4)
      DecodeNvFp4(pairs_, CodesOf(half), scales + half * kOfHalf, pair_, a);
    else
      sm90::DecodeScaled(pairs_, CodesOf(half), scales + half * kOfHalf, pair_, a);
  }
  // In flight afterwards. All of a half's codes are decoded before its first product begins.
  template <int kHalf, bool kAdd, int kSums>
  __device__ __forceinline__ void Multiply(Half& a, float (&sums)[kSums]) const {
    constexpr int kFirst = kHalf * kHalfSteps;
    FinishDecoding(a);
    MultiplySteps<T, S::kRows, kFirst, kHalfSteps, kAdd>(
        shared_.x[place_.index], [&](int step) { return a[step - kFirst]; }, sums);
  }

  template <int kSums>
  __device__ __forceinline__ void MultiplyByOuter(const Unit& unit, float (&sums)[kSums]) const {
    const int tile = unit.column_tile * (cut_.pairs ? S::kBoxTiles : S::kTiles) + tile_;
    const int64_t step = cut_.pairs ? each_.tiles / 2 : S::kBoxTiles;
    const float2 outer = NvFp4OuterOf(each_, unit.group, tile + box_ * step, 2 * pair_);
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] *= (i / 2 % 2 ? outer.y : outer.x) / kNvFp4Unit;
  }

  // Of the warp's tile.
  __device__ __forceinline__ const char* ScalesOf(const char* stage) const {
    return stage + S::kFactorsAt + box_ * S::kScaleBoxBytes + tile_ * cut_.stage_scale_bytes;
  }
  __device__ __forceinline__ uint2 BiasesOf(const char* stage) const {
    return PointBiases<S::kType>(stage + S::kFactorsAt + S::kZerosAt + box_ * S::kZeroBoxBytes +
                                     tile_ * static_cast<int>(kTileRows),
                                 pair_);
  }

  const QuantizedParams& each_;
  const GroupedCodesCut& cut_;
  Shared<S>& shared_;
  const R results_;
  const Pairs pairs_;
  const int pair_;  // of rows of the warp's tile
  int box_, tile_, codes_at_;
  cuda::RingPlace<S::kStages> place_;
};

}  // namespace intarsia::matmul::sm90
