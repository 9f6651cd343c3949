#include "src/ops/static_scaled_int8_quant/static_scaled_int8_quant.h"
#include "src/quant/given_scale_cuda.cuh"

namespace intarsia {

Status StaticScaledInt8Quant::Run(const CudaContext& context) const {
  return cuda::LaunchGivenScale<int8_t>(context, *this, azp);
}

}  // namespace intarsia
