// Products of groups of many rows with 4-bit codes, by wgmma (grouped_warpgroups.cuh).
#pragma once
#include "src/matmul/cuda/quantized_plan.h"

namespace intarsia::matmul::sm90 {

template <DType kType>
Status LaunchGroupedWarpgroupsOf(const QuantizedGroupsParams& params, const QuantizedPlan& plan,
                                 const CudaContext& context);

}  // namespace intarsia::matmul::sm90
