#include "src/activation/gated_cuda.cuh"
#include "src/ops/swigluoai_and_mul/swigluoai_and_mul.h"

namespace intarsia {

Status SwigluoaiAndMul::Run(const CudaContext& context) const {
  return cuda::LaunchGated<cuda::SwigluOai>(context, *this, nullptr, GatedOrder::kInTurn, alpha,
                                            limit);
}

}  // namespace intarsia
