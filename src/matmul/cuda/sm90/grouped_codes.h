// Hopper's kernel of products of groups of rows with 4-bit codes.
#pragma once
#include "src/matmul/cuda/quantized_plan.h"

namespace intarsia::matmul::sm90 {

// x in f16 or bf16, codes u4b8 or e2m1, or u4 with points in u8, by a plan for kGroupsHopper.
template <DType kType>
Status LaunchGroupsHopperOf(const QuantizedGroupsParams& params, const QuantizedPlan& plan,
                            const CudaContext& context);

}  // namespace intarsia::matmul::sm90
