#include "src/ops/per_token_group_quant_int8/per_token_group_quant_int8.h"
#include "src/quant/row_scale_cpu.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const PerTokenGroupQuantInt8& op, const CpuContext& context) {
  return RunRowQuant<TruncatedI8>(op.Rows(), context);
}

}  // namespace intarsia
