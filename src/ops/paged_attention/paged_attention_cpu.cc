#include "src/core/cpu/simd.h"
#include "src/ops/paged_attention/paged_attention.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const PagedAttention& op, const CpuContext& context) {
  attention::Params params;
  INTARSIA_RETURN_IF_ERROR(op.ToParams(params));
  return attention::Run(params, context);  // which chooses the instruction set itself
}

}  // namespace intarsia
