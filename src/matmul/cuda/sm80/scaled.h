// The portable kernels of products of codes.
#pragma once
#include "src/matmul/cuda/scaled_choice.h"

namespace intarsia::matmul {

template <DType kType>
Status LaunchScaledStreamOf(const ScaledParams& params, const CudaContext& context);
template <DType kType>
Status LaunchScaledTilesOf(const ScaledParams& params, const CudaContext& context);

}  // namespace intarsia::matmul
