// What kernels of all kinds of experts read of a pass.
#pragma once
#include "src/core/cuda/vec.cuh"
#include "src/ops/fused_experts/pass.h"

namespace intarsia::cuda {

// By which the results of a pair are multiplied.
template <class T>
__device__ __forceinline__ float WeightOf(const ExpertsPass& pass, int64_t pair) {
  return pass.weights_dtype == DType::kF32 ? static_cast<const float*>(pass.weights)[pair]
                                           : ToFloat(static_cast<const T*>(pass.weights)[pair]);
}

}  // namespace intarsia::cuda
