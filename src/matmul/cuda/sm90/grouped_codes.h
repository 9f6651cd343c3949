// Hopper's kernel of products of groups of rows with weights in codes, by mma.sync.
#pragma once
#include "src/matmul/cuda/quantized_plan.h"

namespace intarsia::matmul::sm90 {

// x in f16 or bf16, by a plan for kGroupsHopper.
template <DType kType>
Status LaunchGroupsHopperOf(const QuantizedGroupsParams& params, const QuantizedPlan& plan,
                            const CudaContext& context);

}  // namespace intarsia::matmul::sm90
