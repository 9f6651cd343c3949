#include "src/core/cpu/simd.h"
#include "src/ops/grouped_matmul_weight_gradient/grouped_matmul_weight_gradient.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const GroupedMatmulWeightGradient& op, const CpuContext& context) {
  return matmul::Run(op.ToParams(), context);  // which chooses the instruction set itself
}

}  // namespace intarsia
