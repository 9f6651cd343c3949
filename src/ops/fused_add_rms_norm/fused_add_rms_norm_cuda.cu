#include "src/norm/norm_row.cuh"
#include "src/ops/fused_add_rms_norm/fused_add_rms_norm.h"

namespace intarsia {

Status FusedAddRmsNorm::Run(const CudaContext& context) const {
  return cuda::LaunchNorm<void, true>(context, {.x = x,
                                                .weight = weight,
                                                .out = out,
                                                .eps = eps,
                                                .rounding = rounding,
                                                .residual = &residual,
                                                .residual_out = &residual_out});
}

}  // namespace intarsia
