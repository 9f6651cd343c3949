#include "src/activation/gated_cpu.h"
#include "src/ops/fatrelu_and_mul/fatrelu_and_mul.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const FatreluAndMul& op, const CpuContext& context) {
  return RunGated<FatRelu>(op, context, nullptr, {op.threshold});
}

}  // namespace intarsia
