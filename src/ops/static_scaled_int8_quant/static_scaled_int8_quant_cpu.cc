#include "src/ops/static_scaled_int8_quant/static_scaled_int8_quant.h"
#include "src/quant/given_scale_cpu.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const StaticScaledInt8Quant& op, const CpuContext& context) {
  return RunGivenScale<I8>(op, context, op.azp);
}

}  // namespace intarsia
