#include "src/ops/dynamic_per_token_scaled_fp8_quant/dynamic_per_token_scaled_fp8_quant.h"
#include "src/quant/row_scale_cuda.cuh"

namespace intarsia {

Status DynamicPerTokenScaledFp8Quant::Run(const CudaContext& context) const {
  return cuda::LaunchRowQuant<__nv_fp8_e4m3>(context, Rows());
}

}  // namespace intarsia
