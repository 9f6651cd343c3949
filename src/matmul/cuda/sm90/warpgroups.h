// Hopper's kernel of products with codes of multiples of 128 columns.
#pragma once
#include "src/matmul/cuda/quantized_plan.h"

namespace intarsia::matmul::sm90 {

// x in f16 or bf16, by a plan for kWarpgroups (PlanWarpgroups says what it takes).
template <DType kType>
Status LaunchWarpgroupsOf(const QuantizedParams& params, const QuantizedPlan& plan,
                          const CudaContext& context);

}  // namespace intarsia::matmul::sm90
