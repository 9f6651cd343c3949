#include "src/activation/gated_cuda.cuh"
#include "src/ops/silu_and_mul/silu_and_mul.h"

namespace intarsia {

Status SiluAndMul::Run(const CudaContext& context) const {
  return cuda::LaunchGated<cuda::Silu>(context, *this);
}

}  // namespace intarsia
