#include "src/norm/norm_row.cuh"
#include "src/ops/rms_norm_per_block_quant/rms_norm_per_block_quant.h"

namespace intarsia {

Status RmsNormPerBlockQuant::Run(const CudaContext& context) const {
  constexpr auto kGroups = cuda::NormScales::kGroups;
  const cuda::Norm norm{.x = x,
                        .weight = weight,
                        .out = q,
                        .eps = eps,
                        .rounding = rounding,
                        .residual = residual ? &*residual : nullptr,
                        .residual_out = &residual_out,
                        .row_scales = &scale,
                        .rule = NormedRule(quant_dtype, scale_ub),
                        .group_size = group_size};
  if (q.dtype == kI8)
    return residual ? cuda::LaunchNorm<int8_t, true, kGroups>(context, norm)
                    : cuda::LaunchNorm<int8_t, false, kGroups>(context, norm);
  return residual ? cuda::LaunchNorm<__nv_fp8_e4m3, true, kGroups>(context, norm)
                  : cuda::LaunchNorm<__nv_fp8_e4m3, false, kGroups>(context, norm);
}

}  // namespace intarsia
