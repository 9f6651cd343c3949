#include <cmath>

#include "src/activation/gated_cuda.cuh"
#include "src/ops/silu_and_mul_with_clamp/silu_and_mul_with_clamp.h"

namespace intarsia {

Status SiluAndMulWithClamp::Run(const CudaContext& context) const {
  return cuda::LaunchGated<cuda::ClampedSilu>(context, *this, nullptr, GatedOrder::kGateFirst,
                                              limit.value_or(INFINITY), alpha, beta);
}

}  // namespace intarsia
