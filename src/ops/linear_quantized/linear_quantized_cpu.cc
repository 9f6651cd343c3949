#include "src/core/cpu/simd.h"
#include "src/ops/linear_quantized/linear_quantized.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const LinearQuantized& op, const CpuContext& context) {
  return matmul::Run(op.ToParams(), context);  // which chooses the instruction set itself
}

}  // namespace intarsia
