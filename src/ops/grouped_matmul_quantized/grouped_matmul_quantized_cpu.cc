#include "src/core/cpu/simd.h"
#include "src/ops/grouped_matmul_quantized/grouped_matmul_quantized.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const GroupedMatmulQuantized& op, const CpuContext& context) {
  return matmul::Run(op.ToParams(), context);  // which chooses the instruction set itself
}

}  // namespace intarsia
