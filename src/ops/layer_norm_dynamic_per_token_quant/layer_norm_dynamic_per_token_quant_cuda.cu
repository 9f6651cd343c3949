#include "src/norm/norm_row.cuh"
#include "src/ops/layer_norm_dynamic_per_token_quant/layer_norm_dynamic_per_token_quant.h"

namespace intarsia {

Status LayerNormDynamicPerTokenQuant::Run(const CudaContext& context) const {
  constexpr auto kRows = cuda::NormScales::kRows;
  const cuda::Norm norm{.x = x,
                        .weight = weight,
                        .out = q,
                        .eps = eps,
                        .row_scales = &scale,
                        .rule = NormedRule(quant_dtype, scale_ub),
                        .bias = bias};
  return q.dtype == kI8 ? cuda::LaunchNorm<int8_t, false, kRows, true>(context, norm)
                        : cuda::LaunchNorm<__nv_fp8_e4m3, false, kRows, true>(context, norm);
}

}  // namespace intarsia
