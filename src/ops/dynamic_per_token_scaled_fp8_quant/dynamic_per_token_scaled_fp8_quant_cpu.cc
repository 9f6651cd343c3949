#include "src/ops/dynamic_per_token_scaled_fp8_quant/dynamic_per_token_scaled_fp8_quant.h"
#include "src/quant/row_scale_cpu.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const DynamicPerTokenScaledFp8Quant& op, const CpuContext& context) {
  return RunRowQuant<F8E4M3>(op.Rows(), context);
}

}  // namespace intarsia
