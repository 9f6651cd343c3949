// Products of a warp by mma.sync, of 32 columns at a time: tiles of w in 4-bit codes, which are A,
// with rows of x, which are B. With r = lane / 4 and c = lane % 4 a lane has columns 8c ... 8c + 7
// of rows 2r and 2r + 1 of a tile, which are A's rows r and r + 8, and of row r of each 8 of x.
#pragma once
#include "src/core/cuda/mma.cuh"
#include "src/matmul/cuda/codes.cuh"
#include "src/matmul/cuda/factors.cuh"

namespace intarsia::matmul::sm90 {

// Scales 2 pair and 2 pair + 1 of those that lie at `from`.
template <DType kType>
__device__ __forceinline__ float2 ScalePairOf(const char* from, int pair) {
  if constexpr (kType == DType::kF32) return reinterpret_cast<const float2*>(from)[pair];
  const uint32_t both = reinterpret_cast<const uint32_t*>(from)[pair];
  if constexpr (kType == DType::kBF16)
    return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u));
  __half2 halves;
  memcpy(&halves, &both, sizeof halves);
  return __half22float2(halves);
}
// The same of f32, f16 or bf16. LoadPair (factors.cuh) knows all types; by the choice among them
// products take 7 to 18% longer.
__device__ __forceinline__ float2 ScalePair(const char* from, DType dtype, int pair) {
  if (dtype == DType::kF32) return ScalePairOf<DType::kF32>(from, pair);
  if (dtype == DType::kBF16) return ScalePairOf<DType::kBF16>(from, pair);
  return ScalePairOf<DType::kF16>(from, pair);
}

// Two scales in e8m0, a byte each, as numbers, and as factors of codes.
__device__ __forceinline__ float2 PowersOf(uint32_t both) {
  return {PowerOf(both & 0xff), PowerOf(both >> 8)};
}
template <DType kType>
__device__ __forceinline__ uint2 E2M1Scales(uint32_t both) {
  return {decoding::E2M1Scale<kType>(both & 0xff), decoding::E2M1Scale<kType>(both >> 8)};
}

// What CountedSteps adds to codes of rows 2 pair and 2 pair + 1, whose points, bytes, lie at
// `from`.
template <DType kType>
__device__ __forceinline__ uint2 PointBiases(const char* from, int pair) {
  using Steps = CountedSteps<Format::kU4, kType>;
  const uint32_t both = reinterpret_cast<const uint16_t*>(from)[pair];
  return {Steps::BiasOf(static_cast<float>(both & 255)),
          Steps::BiasOf(static_cast<float>(both >> 8))};
}

// all += scale group, for sums that are C fragments.
template <int kSums>
__device__ __forceinline__ void AddScaled(float2 scale, const float (&group)[kSums],
                                          float (&all)[kSums]) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) all[i] += (i / 2 % 2 ? scale.y : scale.x) * group[i];
}

template <Format kFormat, DType kType, int kRows, int kTiles>
class CodesBlock {
 public:
  static constexpr int kSums = kRows / 2;  // of a lane and a tile
  static constexpr float kUnit = SpreadCodes<kFormat, kType>::kUnit;

  __device__ __forceinline__ explicit CodesBlock(uint32_t opaque_zero) : spread_(opaque_zero) {}

  // codes(t): the lane's word of row 2r in tile t; x(n): its 16 bytes of row 8n + r; operand(t), if
  // given: what Decode takes for rows 2r and 2r + 1, CountedSteps::BiasOf or E2M1Scale. Sums are
  // those of C fragments, one after the other, and kUnit times what codes stand for; with
  // E2M1Scale, of scaled codes.
  template <class CodesOf, class XOf, class... OperandOf>
  __device__ __forceinline__ void MultiplyAdd(CodesOf codes, XOf x, float (&sums)[kTiles][kSums],
                                              OperandOf... operand) const {
    using M = cuda::Mma<kType>;
    typename M::B of_x[kRows / 8][2];
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n) {
      const uint4 pairs =
          SpreadCodes<kFormat, kType>::InOrder(*reinterpret_cast<const uint4*>(x(n)));
      of_x[n][0] = {{pairs.x, pairs.y}}, of_x[n][1] = {{pairs.z, pairs.w}};
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const uint2 words = *reinterpret_cast<const uint2*>(codes(t));
      uint32_t low[4], high[4];
      spread_.Decode(words.x, low, operand(t).x...);
      spread_.Decode(words.y, high, operand(t).y...);
#pragma unroll
      for (int step = 0; step < 2; ++step)
#pragma unroll
        for (int n = 0; n < kRows / 8; ++n)
          M::MultiplyAdd(reinterpret_cast<float(&)[4]>(sums[t][4 * n]),
                         {{low[2 * step], high[2 * step], low[2 * step + 1], high[2 * step + 1]}},
                         of_x[n][step]);
    }
  }

 private:
  const SpreadCodes<kFormat, kType> spread_;
};

}  // namespace intarsia::matmul::sm90
