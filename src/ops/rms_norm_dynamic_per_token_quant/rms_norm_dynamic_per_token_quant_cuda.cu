#include "src/norm/norm_row.cuh"
#include "src/ops/rms_norm_dynamic_per_token_quant/rms_norm_dynamic_per_token_quant.h"

namespace intarsia {

Status RmsNormDynamicPerTokenQuant::Run(const CudaContext& context) const {
  const cuda::Norm norm{.x = x,
                        .weight = weight,
                        .out = q,
                        .eps = eps,
                        .rounding = rounding,
                        .residual = residual ? &*residual : nullptr,
                        .residual_out = &residual_out,
                        .row_scales = &scale,
                        .rule = Rule()};
  if (q.dtype == kI8)
    return residual ? cuda::LaunchNorm<int8_t, true, true>(context, norm)
                    : cuda::LaunchNorm<int8_t, false, true>(context, norm);
  return residual ? cuda::LaunchNorm<__nv_fp8_e4m3, true, true>(context, norm)
                  : cuda::LaunchNorm<__nv_fp8_e4m3, false, true>(context, norm);
}

}  // namespace intarsia
