// The portable kernels of grouped products.
#pragma once
#include "src/matmul/cuda/choose.h"

namespace intarsia::matmul {

// By the kernel and the tile of the candidate, which can run the call.
template <DType kType>
Status LaunchGroupedOf(const GroupedParams& params, const CudaContext& context,
                       const GroupedCandidate& candidate);
template <DType kType>
Status LaunchGroupedGradientOf(const GroupedGradientParams& params, const CudaContext& context);

}  // namespace intarsia::matmul
