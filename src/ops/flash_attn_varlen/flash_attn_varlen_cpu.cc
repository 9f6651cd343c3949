#include "src/core/check_range.h"
#include "src/core/cpu/simd.h"
#include "src/ops/flash_attn_varlen/flash_attn_varlen.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const FlashAttnVarlen& op, const CpuContext& context) {
  attention::Params params;
  INTARSIA_RETURN_IF_ERROR(op.ToParams(params));
  if (op.block_table)
    INTARSIA_RETURN_IF_ERROR(CheckRange(context, "flash_attn_varlen: block_table", *op.block_table, kAnyNegative, params.cache.num_pages));
  return attention::Run(params, context);
}

}  // namespace intarsia
