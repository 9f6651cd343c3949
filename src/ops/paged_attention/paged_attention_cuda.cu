#include "src/ops/paged_attention/paged_attention.h"

namespace intarsia {

Status PagedAttention::Run(const CudaContext& context) const {
  attention::Params params;
  INTARSIA_RETURN_IF_ERROR(ToParams(params));
  return attention::Run(params, context);
}

}  // namespace intarsia
