// Scales and zeros of groups, as f32, for neighboring rows of a tile.
#pragma once
#include "src/core/cuda/vec.cuh"
#include "src/matmul/quantized.h"

namespace intarsia::matmul {

// 2^(code - 127), whose exponent the code is but for the subnormal one of code 0. 255 is NaN.
__device__ __forceinline__ float PowerOf(uint32_t code) {
  return __uint_as_float(code == 255 ? 0x7fc00000u : code == 0 ? 0x00400000u : code << 23);
}

// Elements i and i + 1 of an array, i even where pairs are aligned.
template <bool kAligned>
__device__ __forceinline__ float2 LoadPair(const void* data, DType dtype, int64_t i) {
  const auto of = [&]<class T>(const T* from) {
    if constexpr (!kAligned) return make_float2(cuda::ToFloat(from[i]), cuda::ToFloat(from[i + 1]));
    const auto pair = *reinterpret_cast<const cuda::Pack<T, 2>*>(from + i);
    return make_float2(cuda::ToFloat(pair.at[0]), cuda::ToFloat(pair.at[1]));
  };
  const auto* const bytes = static_cast<const uint8_t*>(data);
  switch (dtype) {
    case DType::kF16:
      return of(static_cast<const __half*>(data));
    case DType::kBF16:
      return of(static_cast<const __nv_bfloat16*>(data));
    case DType::kI8:
      return of(static_cast<const int8_t*>(data));
    case DType::kF8E4M3:
      return of(static_cast<const __nv_fp8_e4m3*>(data));
    case DType::kU8:
      return make_float2(bytes[i], bytes[i + 1]);
    case DType::kF8E8M0:
      return make_float2(PowerOf(bytes[i]), PowerOf(bytes[i + 1]));
    default:
      return of(static_cast<const float*>(data));
  }
}

// What the factors of one group for rows `row` and `row` + 1 of a tile are multiplied by.
__device__ __forceinline__ float2 OuterOf(const Factors& factors, int64_t tile, int group,
                                          int groups, int row) {
  if (factors.outers == 0) {
    const auto* const bytes = static_cast<const char*>(factors.outer);
    const float one = factors.outer_dtype == DType::kF32 ? *reinterpret_cast<const float*>(bytes)
                      : factors.outer_dtype == DType::kF16
                          ? cuda::ToFloat(*reinterpret_cast<const __half*>(bytes))
                          : cuda::ToFloat(*reinterpret_cast<const __nv_bfloat16*>(bytes));
    return make_float2(one, one);
  }
  const int outers = static_cast<int>(factors.outers);
  const int at = min(group, groups - 1) / (groups / outers);
  return LoadPair<false>(factors.outer, factors.outer_dtype,
                         (tile * outers + at) * kTileRows + row);
}

// The same of matrix `matrix` of several with so many tiles, whose factors are one for each row, or
// one for all; 1 if there are none.
__device__ __forceinline__ float2 OuterOfRows(Factors factors, int matrix, int64_t tiles,
                                              int64_t tile, int row) {
  if (!factors.outer || tile >= tiles) return make_float2(1.0f, 1.0f);
  factors.outer = static_cast<const char*>(factors.outer) + matrix * factors.outer_bytes(tiles);
  return OuterOf(factors, tile, 0, 1, row);
}

// The factors of one group for rows `row` and `row` + 1 of a tile; `inner` has those of the tile's
// group, [16].
__device__ __forceinline__ float2 FactorsOf(const Factors& factors, const char* inner, int64_t tile,
                                            int group, int groups, int row) {
  const float2 found = LoadPair<true>(inner, factors.dtype, row);
  if (!factors.outer) return found;
  const float2 outer = OuterOf(factors, tile, group, groups, row);
  return make_float2(found.x * outer.x, found.y * outer.y);
}

}  // namespace intarsia::matmul
