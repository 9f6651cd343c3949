// Plans of the kernels for Hopper alone (quantized_plan.h). Each makes `plan`, a streaming
// kernel's, one of its kernel and returns true, if that takes the call.
#pragma once
#include "src/matmul/cuda/quantized_plan.h"

namespace intarsia::matmul {

// With few rows in shared memory as a whole: kResident or kWideResident. Warps and splits are the
// fastest ones of layers of a Llama of 8 billion parameters (docs/notebook/weights_in_codes.md).
bool PlanResident(const QuantizedParams& params, const cuda::Device& device, QuantizedPlan& plan);

// Whether kRow is faster, where both take 2 to 8 rows; measured on an H200.
bool IsRowFaster(const QuantizedParams& params, const cuda::Device& device);

// kWarpgroups, cut as is the fastest for such layers.
bool PlanWarpgroups(const QuantizedParams& params, const cuda::Device& device, QuantizedPlan& plan);

// kGroupsHopper, or kGroupsWarpgroups, for `here` groups that have `mean` rows each. Shapes are the
// fastest ones of layers of experts (docs/notebook/many_rows_of_codes.md, weights_in_codes.md).
bool PlanGroupsHopper(const QuantizedGroupsParams& params, int64_t here, int64_t mean,
                      const cuda::Device& device, QuantizedPlan& plan);

}  // namespace intarsia::matmul
