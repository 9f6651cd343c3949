#include "src/norm/norm_row_cuda.h"
#include "src/ops/rms_norm/rms_norm.h"

namespace intarsia {

Status RmsNorm::Run(const CudaContext& context) const {
  return cuda::LaunchNorm(context, cuda::MakeNormArguments(x, weight, eps, rounding, out));
}

}  // namespace intarsia
