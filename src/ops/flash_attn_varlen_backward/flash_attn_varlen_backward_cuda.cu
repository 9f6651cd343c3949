#include "src/ops/flash_attn_varlen_backward/flash_attn_varlen_backward.h"

namespace intarsia {

Status FlashAttnVarlenBackward::Run(const CudaContext& context) const {
  return attention::RunBackward(ToParams(), context);
}

}  // namespace intarsia
