#include "src/activation/gated_cuda.cuh"
#include "src/ops/gelu_tanh_and_mul/gelu_tanh_and_mul.h"

namespace intarsia {

Status GeluTanhAndMul::Run(const CudaContext& context) const {
  return cuda::LaunchGated<cuda::GeluTanh>(context, *this);
}

}  // namespace intarsia
