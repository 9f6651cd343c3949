#include "src/ops/per_token_group_fp8_quant/per_token_group_fp8_quant.h"
#include "src/quant/row_scale_cpu.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const PerTokenGroupFp8Quant& op, const CpuContext& context) {
  return RunRowQuant<F8E4M3>(op.Rows(), context);
}

}  // namespace intarsia
