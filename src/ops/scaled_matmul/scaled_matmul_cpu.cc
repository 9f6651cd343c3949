#include "src/core/cpu/simd.h"
#include "src/ops/scaled_matmul/scaled_matmul.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const ScaledMatmul& op, const CpuContext& context) {
  return matmul::Run(op.ToParams(), context);  // which chooses the instruction set itself
}

}  // namespace intarsia
