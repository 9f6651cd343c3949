#include "src/activation/gated_cuda.cuh"
#include "src/ops/silu_and_mul_quant/silu_and_mul_quant.h"

namespace intarsia {

Status SiluAndMulQuant::Run(const CudaContext& context) const {
  return cuda::LaunchGated<cuda::Silu, __nv_fp8_e4m3>(context, *this, &scale);
}

}  // namespace intarsia
