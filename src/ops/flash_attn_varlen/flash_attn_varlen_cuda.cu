#include "src/core/check_range.h"
#include "src/ops/flash_attn_varlen/flash_attn_varlen.h"

namespace intarsia {

Status FlashAttnVarlen::Run(const CudaContext& context) const {
  attention::Params params;
  INTARSIA_RETURN_IF_ERROR(ToParams(params));
  if (block_table)
    INTARSIA_RETURN_IF_ERROR(CheckRange(context, "flash_attn_varlen: block_table", *block_table, kAnyNegative, params.cache.num_pages));
  return attention::Run(params, context);
}

}  // namespace intarsia
