#include "src/activation/gated_cpu.h"
#include "src/ops/gelu_tanh_and_mul/gelu_tanh_and_mul.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const GeluTanhAndMul& op, const CpuContext& context) {
  return RunGated<GeluTanh>(op, context);
}

}  // namespace intarsia
