// Plans of the kernels for Hopper alone (quantized_plan.h), and what the choice of a kernel asks of
// a call. Each makes `plan`, a streaming kernel's, one of its kernel and returns true, if that
// takes the call.
#pragma once
#include "src/core/round.h"
#include "src/matmul/cuda/quantized_plan.h"

namespace intarsia::matmul {

// Groups of a block, of two, or that end with a stage.
inline bool HasCoarseGroups(const QuantizedParams& p) {
  return p.group == kBlockColumns || p.group == 2 * kBlockColumns || p.group % kStageColumns == 0;
}
inline int64_t RowTiles(const QuantizedParams& p, const QuantizedPlan& plan) {
  return CeilDiv<int64_t>(p.m, plan.shape.rows);
}
inline int64_t Ctas(const QuantizedParams& p, const QuantizedPlan& plan) {
  return RowTiles(p, plan) * CeilDiv(p.tiles, plan.cta_tiles());
}

// With few rows in shared memory as a whole: kResident or kWideResident. Warps and splits are the
// fastest ones of layers of a Llama of 8 billion parameters (docs/notebook/weights_in_codes.md).
bool PlanResident(const QuantizedParams& params, const cuda::Device& device, QuantizedPlan& plan);

// kWarpgroups, cut as is the fastest for such layers.
bool PlanWarpgroups(const QuantizedParams& params, const cuda::Device& device, QuantizedPlan& plan);

// kGroupsHopper, for `here` groups that have `mean` rows each. Shapes are the fastest ones of
// layers of experts (docs/notebook/weights_in_codes.md).
bool PlanGroupsHopper(const QuantizedParams& params, int64_t here, int64_t mean,
                      const cuda::Device& device, QuantizedPlan& plan);

}  // namespace intarsia::matmul
