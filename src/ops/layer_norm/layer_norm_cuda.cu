#include "src/norm/norm_row.cuh"
#include "src/ops/layer_norm/layer_norm.h"

namespace intarsia {

Status LayerNorm::Run(const CudaContext& context) const {
  return cuda::LaunchNorm<void, false, cuda::NormScales::kGiven, true>(
      context, {.x = x, .weight = weight, .out = out, .eps = eps, .bias = bias});
}

}  // namespace intarsia
