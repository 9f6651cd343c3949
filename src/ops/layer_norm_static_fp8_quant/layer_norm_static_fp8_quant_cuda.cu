#include "src/norm/norm_row.cuh"
#include "src/ops/layer_norm_static_fp8_quant/layer_norm_static_fp8_quant.h"

namespace intarsia {

Status LayerNormStaticFp8Quant::Run(const CudaContext& context) const {
  return cuda::LaunchNorm<__nv_fp8_e4m3, false, cuda::NormScales::kGiven, true>(
      context, {.x = x, .weight = weight, .out = q, .eps = eps, .scale = &scale, .bias = bias});
}

}  // namespace intarsia
