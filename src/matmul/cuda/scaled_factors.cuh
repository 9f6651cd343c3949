// What a sum of a block, and the sum of all blocks, are multiplied by: scales that differ from
// block to block, and those that do not.
#pragma once
#include "src/core/cuda/vec.cuh"
#include "src/matmul/scaled.h"

namespace intarsia::matmul {

__device__ __forceinline__ float OfBlock(const BlockScales& scales, int64_t i, int64_t b) {
  return scales.block != 0 ? scales.At(i, b) : 1.0f;
}
__device__ __forceinline__ float OfAllBlocks(const BlockScales& scales, int64_t i) {
  return scales.block == 0 ? scales.At(i, 0) : 1.0f;
}

__device__ __forceinline__ float BiasAt(const ScaledParams& p, int64_t column) {
  if (!p.bias) return 0.0f;
  if (p.bias_dtype == DType::kF32) return static_cast<const float*>(p.bias)[column];
  if (p.bias_dtype == DType::kF16) return cuda::ToFloat(static_cast<const __half*>(p.bias)[column]);
  return cuda::ToFloat(static_cast<const __nv_bfloat16*>(p.bias)[column]);
}

}  // namespace intarsia::matmul
