// Factors of a stage in shared memory as a lane needs them: those of rows 2r and 2r + 1 of its
// warp's tiles.
#pragma once
#include "src/matmul/cuda/factors.cuh"
#include "src/matmul/cuda/sm90/codes_block.cuh"

namespace intarsia::matmul::sm90 {

// Blocks of 32 columns are of group `block` >> this of a stage.
__device__ __forceinline__ int GroupShift(const QuantizedParams& p) {
  return p.group == kBlockColumns ? 0 : p.group == 2 * kBlockColumns ? 1 : 2;
}

// `each`: of the warp's tiles, four apart. `from`: the stage's factors. S has kType, kOfSteps, and
// where factors of all tiles lie: scales first, then kZerosAt, kOuterScalesAt and kOuterZerosAt.
template <class S>
class LaneFactors {
 public:
  static constexpr int kRows = static_cast<int>(kTileRows), kPairs = kRows / 2;
  static constexpr int kSteps = kStageColumns / kStepColumns;
  static constexpr int kBlocks = kStageColumns / static_cast<int>(kBlockColumns);

  // `tile`: the warp's first one, of the CTA's.
  __device__ __forceinline__ LaneFactors(const QuantizedParams& p, int group_shift, int tile, int r)
      : p_(p), group_shift_(group_shift), tile_(tile), pair_in_cta_(Kept(tile * kPairs + r)) {}

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
    return FactorOf<kScale>(from + S::kZerosAt, p_.zeros.dtype, S::kOuterZerosAt - S::kZerosAt,
                            each, group);
  }
  // The same of a block, of f16 or bytes, in parts.
  template <DType kScale>
  __device__ __forceinline__ auto MinimumsOf(const char* from, int each, int block) const {
    Minimums<Bytes(kScale) == 1> found{
        ScalePairOf<kScale>(from + S::kZerosAt, PairAt(each, block))};
    if constexpr (Bytes(kScale) == 1) found.outer = OuterPair(from + S::kOuterZerosAt, each);
    return found;
  }
  // What CountedSteps adds for points.
  __device__ __forceinline__ uint2 Biases(const char* from, int each) const {
    return PointBiases<S::kType>(from + S::kZerosAt, pair_in_cta_ + each * 4 * kPairs);
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

 private:
  template <DType kScale>
  __device__ __forceinline__ float2 FactorOf(const char* from, DType dtype, int outer_at, int each,
                                             int group) const {
    const int at = PairAt(each, group);
    if constexpr (kScale == DType::kOther) return ScalePair(from, dtype, at);
    const float2 factor = ScalePairOf<kScale>(from, at);
    if constexpr (Bytes(kScale) != 1) return factor;
    const float2 outer = OuterPair(from + outer_at, each);
    return make_float2(factor.x * outer.x, factor.y * outer.y);
  }
  // Of a stage's block, or step.
  __device__ __forceinline__ int PairAt(int each, int group) const {
    const int shift = S::kOfSteps ? 0 : group_shift_;
    const int groups = S::kOfSteps ? kSteps : kBlocks >> shift;
    return ((tile_ + 4 * each) * groups + (group >> shift)) * kPairs + pair_in_tile();
  }
  __device__ __forceinline__ float2 OuterPair(const char* outers, int each) const {
    return ScalePairOf<DType::kF16>(outers, (tile_ + 4 * each) * kPairs + pair_in_tile());
  }

  const QuantizedParams& p_;
  const int group_shift_;
  const int tile_, pair_in_cta_;
};

}  // namespace intarsia::matmul::sm90
