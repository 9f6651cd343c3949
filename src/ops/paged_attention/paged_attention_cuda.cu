#include "src/core/check_range.h"
#include "src/ops/paged_attention/paged_attention.h"

namespace intarsia {

Status PagedAttention::Run(const CudaContext& context) const {
  attention::Params params;
  INTARSIA_RETURN_IF_ERROR(ToParams(params));
  INTARSIA_RETURN_IF_ERROR(CheckRange(context, "paged_attention: block_table", block_table, kAnyNegative, params.cache.num_pages));
  return attention::Run(params, context);
}

}  // namespace intarsia
