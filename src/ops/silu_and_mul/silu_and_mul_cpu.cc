#include "src/activation/gated_cpu.h"
#include "src/ops/silu_and_mul/silu_and_mul.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const SiluAndMul& op, const CpuContext& context) {
  return RunGated<Silu>(op, context);
}

}  // namespace intarsia
