#include "src/norm/norm_row.cuh"
#include "src/ops/rms_norm_static_fp8_quant/rms_norm_static_fp8_quant.h"

namespace intarsia {

Status RmsNormStaticFp8Quant::Run(const CudaContext& context) const {
  return cuda::LaunchNorm<__nv_fp8_e4m3, false>(
      context,
      {.x = x, .weight = weight, .out = q, .eps = eps, .rounding = rounding, .scale = &scale});
}

}  // namespace intarsia
