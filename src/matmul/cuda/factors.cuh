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

// Element i of an array of f32, f16 or bf16, as outer factors are.
__device__ __forceinline__ float LoadOne(const void* data, DType dtype, int64_t i) {
  if (dtype == DType::kF32) return static_cast<const float*>(data)[i];
  if (dtype == DType::kF16) return cuda::ToFloat(static_cast<const __half*>(data)[i]);
  return cuda::ToFloat(static_cast<const __nv_bfloat16*>(data)[i]);
}

// What the factors of one group for rows `row` and `row` + 1 of a tile are multiplied by.
__device__ __forceinline__ float2 OuterOf(const Factors& factors, int64_t tile, int group,
                                          int groups, int row) {
  if (factors.outers == 0) {
    const float one = LoadOne(factors.outer, factors.outer_dtype, 0);
    return make_float2(one, one);
  }
  const int outers = static_cast<int>(factors.outers);
  const int at = min(group, groups - 1) / (groups / outers);
  return LoadPair<false>(factors.outer, factors.outer_dtype,
                         (tile * outers + at) * kTileRows + row);
}

// nvfp4's outer scales, of stacked matrices: one for each row, or one for each matrix. Where those
// of rows `row` and `row` + 1 of a tile lie; `tile`: of those of all matrices.
__device__ __forceinline__ int64_t NvFp4OuterIndex(const Factors& scales, int matrix, int64_t tile,
                                                   int row) {
  return scales.outers ? tile * kTileRows + row : matrix;
}
// And what they are; 1 if there are none.
__device__ __forceinline__ float2 NvFp4OuterPair(const Factors& scales, int64_t at) {
  if (!scales.outer) return make_float2(1.0f, 1.0f);
  if (scales.outers) return LoadPair<false>(scales.outer, scales.outer_dtype, at);
  const float one = LoadOne(scales.outer, scales.outer_dtype, at);
  return make_float2(one, one);
}
// Of a tile of a matrix with so many; 1 beyond the last one.
__device__ __forceinline__ float2 NvFp4OuterOf(const QuantizedParams& p, int matrix, int64_t tile,
                                               int row) {
  if (tile >= p.tiles) return make_float2(1.0f, 1.0f);
  return NvFp4OuterPair(p.scales, NvFp4OuterIndex(p.scales, matrix, matrix * p.tiles + tile, row));
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
