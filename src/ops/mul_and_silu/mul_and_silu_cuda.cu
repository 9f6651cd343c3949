#include "src/activation/gated_cuda.cuh"
#include "src/ops/mul_and_silu/mul_and_silu.h"

namespace intarsia {

Status MulAndSilu::Run(const CudaContext& context) const {
  return cuda::LaunchGated<cuda::Silu>(context, *this, nullptr, GatedOrder::kUpFirst);
}

}  // namespace intarsia
