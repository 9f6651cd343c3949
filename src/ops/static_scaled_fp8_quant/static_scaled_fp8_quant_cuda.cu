#include "src/ops/static_scaled_fp8_quant/static_scaled_fp8_quant.h"
#include "src/quant/given_scale_cuda.cuh"

namespace intarsia {

Status StaticScaledFp8Quant::Run(const CudaContext& context) const {
  return cuda::LaunchGivenScale<__nv_fp8_e4m3>(context, *this);
}

}  // namespace intarsia
