#include "src/activation/gated_cpu.h"
#include "src/ops/gelu_and_mul/gelu_and_mul.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const GeluAndMul& op, const CpuContext& context) {
  return RunGated<Gelu>(op, context);
}

}  // namespace intarsia
