#include "src/ops/dynamic_scaled_int8_quant/dynamic_scaled_int8_quant.h"
#include "src/quant/row_scale_cpu.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const DynamicScaledInt8Quant& op, const CpuContext& context) {
  return RunRowQuant<I8>(op.Rows(), context);
}

}  // namespace intarsia
