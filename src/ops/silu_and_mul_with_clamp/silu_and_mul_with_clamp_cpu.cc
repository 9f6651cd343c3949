#include <cmath>

#include "src/activation/gated_cpu.h"
#include "src/ops/silu_and_mul_with_clamp/silu_and_mul_with_clamp.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const SiluAndMulWithClamp& op, const CpuContext& context) {
  return RunGated<ClampedSilu>(op, context, nullptr,
                               {op.limit.value_or(INFINITY), op.alpha, op.beta});
}

}  // namespace intarsia
