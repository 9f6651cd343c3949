#include "src/activation/gated_cuda.cuh"
#include "src/ops/fatrelu_and_mul/fatrelu_and_mul.h"

namespace intarsia {

Status FatreluAndMul::Run(const CudaContext& context) const {
  return cuda::LaunchGated<cuda::FatRelu>(context, *this, nullptr, GatedOrder::kGateFirst,
                                          threshold);
}

}  // namespace intarsia
