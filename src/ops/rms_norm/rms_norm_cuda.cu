#include "src/norm/norm_row.cuh"
#include "src/ops/rms_norm/rms_norm.h"

namespace intarsia {

Status RmsNorm::Run(const CudaContext& context) const {
  return cuda::LaunchNorm<void, false>(
      context, {.x = x, .weight = weight, .out = out, .eps = eps, .rounding = rounding});
}

}  // namespace intarsia
