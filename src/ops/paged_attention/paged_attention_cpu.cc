#include "src/core/check_range.h"
#include "src/core/cpu/simd.h"
#include "src/ops/paged_attention/paged_attention.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const PagedAttention& op, const CpuContext& context) {
  attention::Params params;
  INTARSIA_RETURN_IF_ERROR(op.ToParams(params));
  INTARSIA_RETURN_IF_ERROR(CheckRange(context, "paged_attention: block_table", op.block_table, kAnyNegative, params.cache.num_pages));
  return attention::Run(params, context);
}

}  // namespace intarsia
