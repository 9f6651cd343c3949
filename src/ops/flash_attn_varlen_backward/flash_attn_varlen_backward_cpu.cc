#include "src/core/cpu/simd.h"
#include "src/ops/flash_attn_varlen_backward/flash_attn_varlen_backward.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const FlashAttnVarlenBackward& op, const CpuContext& context) {
  return attention::RunBackward(op.ToParams(), context);  // chooses the instruction set itself
}

}  // namespace intarsia
