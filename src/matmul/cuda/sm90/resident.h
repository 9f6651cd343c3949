// Hopper's kernel of products with weights in codes and few rows of x.
#pragma once
#include "src/matmul/cuda/quantized_plan.h"

namespace intarsia::matmul::sm90 {

// x in f16 or bf16, by a plan for a resident kernel.
template <DType kType>
Status LaunchResidentOf(const QuantizedParams& params, const QuantizedPlan& plan,
                        const CudaContext& context);

}  // namespace intarsia::matmul::sm90
