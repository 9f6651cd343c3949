#include "src/ops/static_scaled_fp8_quant/static_scaled_fp8_quant.h"
#include "src/quant/given_scale_cpu.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const StaticScaledFp8Quant& op, const CpuContext& context) {
  return RunGivenScale<F8E4M3>(op, context);
}

}  // namespace intarsia
