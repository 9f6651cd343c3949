// Factors of units of codes (row_of_codes.cuh), in registers as they lie in memory.
#pragma once
#include "src/core/cuda/vec.cuh"
#include "src/core/dtype.h"
#include "src/matmul/cuda/factors.cuh"

namespace intarsia::matmul {

// Two neighboring factors as they lie in memory, each of 1, 2 or 4 bytes.
struct RawPair {
  uint2 bits;

  // kMayBeBytes: whether each may have 1 byte, where it may otherwise have 2 or 4.
  template <bool kMayBeBytes>
  __device__ __forceinline__ void Load(const char* from, int bytes) {
    if (kMayBeBytes && bytes == 1)
      bits.x = *reinterpret_cast<const uint16_t*>(from);
    else if (bytes == 2)
      bits.x = *reinterpret_cast<const uint32_t*>(from);
    else
      bits = *reinterpret_cast<const uint2*>(from);
  }
  // All conversions to f32, and then a choice where the type is known at run time alone: branches
  // cost more.
  template <bool kMayBeBytes>
  __device__ __forceinline__ float2 Numbers(DType dtype) const {
    if (kMayBeBytes && dtype == DType::kU8) return make_float2(bits.x & 0xff, bits.x >> 8);
    if (kMayBeBytes && dtype == DType::kI8)
      return make_float2(static_cast<int8_t>(bits.x & 0xff), static_cast<int8_t>(bits.x >> 8));
    __half2 halves;
    memcpy(&halves, &bits.x, sizeof halves);
    const float2 f16 = __half22float2(halves);
    const bool is_f16 = dtype == DType::kF16, is_f32 = dtype == DType::kF32;
    const float low = is_f16 ? f16.x : __uint_as_float(is_f32 ? bits.x : bits.x << 16);
    const float high = is_f16 ? f16.y : __uint_as_float(is_f32 ? bits.y : bits.x & 0xffff0000u);
    return {low, high};
  }
};

// Scales of e8m0 in pairs, without a choice for each: code 0 stands for 0 in place of 2^-127, and
// NaNs are noted and put in at the end.
template <int kTiles>
class E8M0Scales {
 public:
  static __device__ __forceinline__ float2 PairOf(uint32_t codes) {
    return {__uint_as_float(codes << 23 & 0x7f800000u), __uint_as_float(codes << 15 & 0x7f800000u)};
  }
  template <int kGroups>
  __device__ __forceinline__ void Note(const RawPair (&scales)[kGroups][kTiles]) {
    static_assert(kGroups % 2 == 0);
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int g = 0; g < kGroups; g += 2) {
        const uint32_t codes = scales[g][t].bits.x | scales[g + 1][t].bits.x << 16;
        nans_[t] |=
            ((codes & 0x7f7f7f7fu) + 0x01010101u) & codes;  // a byte's sign, where it is 255
      }
  }
  // Into C fragments.
  __device__ __forceinline__ void PutNaNs(float (&sums)[kTiles][4]) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const float nan = __uint_as_float(0x7fc00000u);
      if (nans_[t] & 0x00800080u) sums[t][0] = sums[t][1] = nan;
      if (nans_[t] & 0x80008000u) sums[t][2] = sums[t][3] = nan;
    }
  }

 private:
  uint32_t nans_[kTiles] = {};
};

// nvfp4's outer scales of rows 2r and 2r + 1 of tiles, in a lane; kTiles 0: there are none.
template <int kTiles>
class NvFp4OuterScales {
 public:
  // `tile`: of those of all matrices.
  __device__ __forceinline__ void PointAt(int t, const Factors& scales, int matrix, int tile,
                                          int r) {
    at_[t] = NvFp4OuterIndex(scales, matrix, tile, 2 * r);
  }
  __device__ __forceinline__ void Load(const Factors& scales) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) of_[t] = NvFp4OuterPair(scales, at_[t]);
  }
  __device__ __forceinline__ float Times(int t, int row, float sum) const {
    return sum * (row == 0 ? of_[t].x : of_[t].y);
  }

 private:
  int64_t at_[kTiles];
  float2 of_[kTiles];
};
template <>
class NvFp4OuterScales<0> {
 public:
  __device__ __forceinline__ void PointAt(int, const Factors&, int, int, int) {}
  __device__ __forceinline__ void Load(const Factors&) {}
  __device__ __forceinline__ float Times(int, int, float sum) const { return sum; }
};

}  // namespace intarsia::matmul
