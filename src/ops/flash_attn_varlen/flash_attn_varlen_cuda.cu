#include "src/ops/flash_attn_varlen/flash_attn_varlen.h"

namespace intarsia {

Status FlashAttnVarlen::Run(const CudaContext& context) const {
  attention::Params params;
  INTARSIA_RETURN_IF_ERROR(ToParams(params));
  return attention::Run(params, context);
}

}  // namespace intarsia
