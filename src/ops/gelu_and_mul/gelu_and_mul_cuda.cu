#include "src/activation/gated_cuda.cuh"
#include "src/ops/gelu_and_mul/gelu_and_mul.h"

namespace intarsia {

Status GeluAndMul::Run(const CudaContext& context) const {
  return cuda::LaunchGated<cuda::Gelu>(context, *this);
}

}  // namespace intarsia
