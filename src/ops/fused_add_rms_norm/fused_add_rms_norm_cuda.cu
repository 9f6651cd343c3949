#include "src/norm/norm_row_cuda.h"
#include "src/ops/fused_add_rms_norm/fused_add_rms_norm.h"

namespace intarsia {

Status FusedAddRmsNorm::Run(const CudaContext& context) const {
  cuda::NormArguments arguments = cuda::MakeNormArguments(x, weight, eps, rounding, out);
  arguments.residual = residual.data;
  arguments.residual_out = residual_out.data;
  return cuda::LaunchNorm(context, arguments);
}

}  // namespace intarsia
