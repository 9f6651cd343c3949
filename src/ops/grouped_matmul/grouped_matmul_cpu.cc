#include "src/core/cpu/simd.h"
#include "src/ops/grouped_matmul/grouped_matmul.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const GroupedMatmul& op, const CpuContext& context) {
  return matmul::Run(op.ToParams(), context);  // which chooses the instruction set itself
}

}  // namespace intarsia
