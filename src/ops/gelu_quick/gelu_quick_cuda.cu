#include "src/activation/elementwise_cuda.cuh"
#include "src/ops/gelu_quick/gelu_quick.h"

namespace intarsia {

Status GeluQuick::Run(const CudaContext& context) const {
  return cuda::LaunchElementwise<cuda::Logistic>(context, *this);
}

}  // namespace intarsia
