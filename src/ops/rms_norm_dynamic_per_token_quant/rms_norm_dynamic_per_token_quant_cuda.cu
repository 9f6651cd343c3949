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
                        .rule = NormedRule(quant_dtype, scale_ub)};
  if (q.dtype == kI8)
    return residual ? cuda::LaunchNorm<int8_t, true, cuda::NormScales::kRows>(context, norm)
                    : cuda::LaunchNorm<int8_t, false, cuda::NormScales::kRows>(context, norm);
  return residual ? cuda::LaunchNorm<__nv_fp8_e4m3, true, cuda::NormScales::kRows>(context, norm)
                  : cuda::LaunchNorm<__nv_fp8_e4m3, false, cuda::NormScales::kRows>(context, norm);
}

}  // namespace intarsia
