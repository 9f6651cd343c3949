#include "src/activation/elementwise_cuda.cuh"
#include "src/ops/gelu_new/gelu_new.h"

namespace intarsia {

Status GeluNew::Run(const CudaContext& context) const {
  return round_steps ? cuda::LaunchElementwise<cuda::GeluNewSteps>(context, *this)
                     : cuda::LaunchElementwise<cuda::GeluTanh>(context, *this);
}

}  // namespace intarsia
