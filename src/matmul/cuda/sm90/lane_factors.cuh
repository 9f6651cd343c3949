// Factors of a stage in shared memory (WarpgroupsShared) as a lane needs them: those of rows 2r and
// 2r + 1 of its warp's tiles.
#pragma once
#include "src/matmul/cuda/factors.cuh"
#include "src/matmul/cuda/sm90/codes_block.cuh"
#include "src/matmul/cuda/sm90/warpgroups_stage.cuh"

namespace intarsia::matmul::sm90 {

// `each`: of the warp's tiles, four apart. `from`: the stage's factors.
template <class S>
class LaneFactors {
 public:
  static constexpr int kRows = static_cast<int>(kTileRows), kPairs = kRows / 2;
  static constexpr int kSteps = kStageColumns / kStepColumns;
  static constexpr int kBlocks = kStageColumns / static_cast<int>(kBlockColumns);

  // `tile`: the warp's first one, of the CTA's.
  __device__ __forceinline__ LaneFactors(const QuantizedParams& p, int tile, int r)
      : p_(p),
        tile_(tile),
        pair_in_cta_(Kept(tile * kPairs + r)),
        group_shift_(p.group == kBlockColumns       ? 0
                     : p.group == 2 * kBlockColumns ? 1
                                                    : 2) {}

  // The scales of all of a stage.
  template <DType kScale>
  __device__ __forceinline__ float2 ScaleOfStage(const char* from, int each) const {
    return ScalePairOf<kScale>(from, pair_in_cta_ + each * 4 * kPairs);
  }
  // Of a stage's block, or step, of type kScale, or of any of 2 and 4 bytes; bytes are times outer
  // factors.
  template <DType kScale>
  __device__ __forceinline__ float2 Scale(const char* from, int each, int group) const {
    return FactorOf<kScale>(from, p_.scales.dtype, S::kOuterScalesAt, each, group);
  }
  template <DType kScale>
  __device__ __forceinline__ float2 Minimum(const char* from, int each, int group) const {
    return FactorOf<kScale>(from + S::kMostScaleBytes, p_.zeros.dtype,
                            S::kOuterZerosAt - S::kMostScaleBytes, each, group);
  }
  // What CountedSteps adds for points.
  __device__ __forceinline__ uint2 Biases(const char* from, int each) const {
    return PointBiases<S::kType>(from + S::kMostScaleBytes, pair_in_cta_ + each * 4 * kPairs);
  }
  // mxfp4's scales of blocks, or nvfp4's of steps, a byte each: where a tile's begin, and those of
  // both rows.
  __device__ __forceinline__ const char* ByteScales(const char* from, int each = 0) const {
    return from + (tile_ + 4 * each) * (S::kOfSteps ? kSteps : kBlocks) * kRows;
  }
  __device__ __forceinline__ uint32_t ByteScalePair(const char* from, int each, int group) const {
    return reinterpret_cast<const uint16_t*>(ByteScales(from, each) +
                                             group * kRows)[pair_in_tile()];
  }
  __device__ __forceinline__ int pair_in_tile() const { return pair_in_cta_ % kPairs; }

  // nvfp4's outer scales, which multiply sums at the end.
  __device__ __forceinline__ float2 NvFp4Outer(const WarpgroupsTask& task, int each) const {
    if constexpr (!S::kIsNvFp4) return {1.0f, 1.0f};
    const WarpgroupsHalves<S> halves(p_);
    const int tile = tile_ + 4 * each, half = tile / halves.cta_tiles;
    const int64_t of_half = task.first_tile + tile % halves.cta_tiles;
    if (of_half >= halves.tiles) return {1.0f, 1.0f};
    return NvFp4OuterOf(p_, 0, half * halves.tiles + of_half, 2 * pair_in_tile());
  }

 private:
  template <DType kScale>
  __device__ __forceinline__ float2 FactorOf(const char* from, DType dtype, int outer_at, int each,
                                             int group) const {
    const int tile = tile_ + 4 * each, shift = S::kOfSteps ? 0 : group_shift_;
    const int groups = S::kOfSteps ? kSteps : kBlocks >> shift;
    const int at = (tile * groups + (group >> shift)) * kPairs + pair_in_tile();
    if constexpr (kScale == DType::kOther) return ScalePair(from, dtype, at);
    const float2 factor = ScalePairOf<kScale>(from, at);
    if constexpr (Bytes(kScale) != 1) return factor;
    const float2 outer = ScalePairOf<DType::kF16>(from + outer_at, tile * kPairs + pair_in_tile());
    return make_float2(factor.x * outer.x, factor.y * outer.y);
  }

  const QuantizedParams& p_;
  const int tile_, pair_in_cta_;
  const int group_shift_;  // blocks of 32 columns are of group `block` >> this of a stage
};

}  // namespace intarsia::matmul::sm90
