// The portable kernels of products with weights in codes.
#pragma once
#include "src/matmul/cuda/quantized_plan.h"

namespace intarsia::matmul {

template <DType kType>
Status LaunchQuantizedOf(const QuantizedParams& params, const QuantizedPlan& plan,
                         const CudaContext& context);

}  // namespace intarsia::matmul
