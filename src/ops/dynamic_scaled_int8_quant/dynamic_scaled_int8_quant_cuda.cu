#include "src/ops/dynamic_scaled_int8_quant/dynamic_scaled_int8_quant.h"
#include "src/quant/row_scale_cuda.cuh"

namespace intarsia {

Status DynamicScaledInt8Quant::Run(const CudaContext& context) const {
  return cuda::LaunchRowQuant<int8_t>(context, Rows());
}

}  // namespace intarsia
