#include "src/ops/per_token_group_quant_int8/per_token_group_quant_int8.h"
#include "src/quant/row_scale_cuda.cuh"

namespace intarsia {

Status PerTokenGroupQuantInt8::Run(const CudaContext& context) const {
  return cuda::LaunchRowQuant<cuda::TruncatedI8>(context, Rows());
}

}  // namespace intarsia
