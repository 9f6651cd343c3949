#include "src/norm/norm_row.cuh"
#include "src/ops/fused_add_rms_norm_static_fp8_quant/fused_add_rms_norm_static_fp8_quant.h"

namespace intarsia {

Status FusedAddRmsNormStaticFp8Quant::Run(const CudaContext& context) const {
  return cuda::LaunchNorm<__nv_fp8_e4m3, true>(context, {.x = x,
                                                         .weight = weight,
                                                         .out = q,
                                                         .eps = eps,
                                                         .rounding = rounding,
                                                         .residual = &residual,
                                                         .residual_out = &residual_out,
                                                         .scale = &scale});
}

}  // namespace intarsia
