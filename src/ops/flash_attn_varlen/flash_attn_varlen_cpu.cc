#include "src/core/cpu/simd.h"
#include "src/ops/flash_attn_varlen/flash_attn_varlen.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const FlashAttnVarlen& op, const CpuContext& context) {
  attention::Params params;
  INTARSIA_RETURN_IF_ERROR(op.ToParams(params));
  return attention::Run(params, context);  // which chooses the instruction set itself
}

}  // namespace intarsia
