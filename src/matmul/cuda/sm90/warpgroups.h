// Hopper's kernel of products with 4-bit codes and 4 rows of x or more.
#pragma once
#include "src/matmul/cuda/quantized_plan.h"

namespace intarsia::matmul::sm90 {

// x in f16 or bf16, codes u4b8, or u4 with points in u8, by a plan for kWarpgroups.
template <DType kType>
Status LaunchWarpgroupsOf(const QuantizedParams& params, const QuantizedPlan& plan,
                          const CudaContext& context);

}  // namespace intarsia::matmul::sm90
