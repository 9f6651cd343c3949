#include "src/norm/quant_row_cpu.h"
#include "src/ops/rms_norm_dynamic_per_token_quant/rms_norm_dynamic_per_token_quant.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const RmsNormDynamicPerTokenQuant& op, const CpuContext& context) {
  const Blocks row{1, op.x.dim(-1)};
  return op.q.dtype == kI8 ? RunQuantizedRms<I8>(op, op.scale.size(), row, context)
                           : RunQuantizedRms<F8E4M3>(op, op.scale.size(), row, context);
}

}  // namespace intarsia
