#include "src/activation/elementwise_cuda.cuh"
#include "src/ops/gelu_fast/gelu_fast.h"

namespace intarsia {

Status GeluFast::Run(const CudaContext& context) const {
  return round_steps ? cuda::LaunchElementwise<cuda::GeluFastSteps>(context, *this)
                     : cuda::LaunchElementwise<cuda::GeluTanh>(context, *this);
}

}  // namespace intarsia
