#include "src/ops/per_token_group_fp8_quant/per_token_group_fp8_quant.h"
#include "src/quant/row_scale_cuda.cuh"

namespace intarsia {

Status PerTokenGroupFp8Quant::Run(const CudaContext& context) const {
  return cuda::LaunchRowQuant<__nv_fp8_e4m3>(context, Rows());
}

}  // namespace intarsia
