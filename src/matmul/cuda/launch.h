// Launches by a candidate that can run the call, whether it would be chosen or not: checks take
// them one by one.
#pragma once
#include "src/matmul/cuda/choose.h"

namespace intarsia::matmul {

Status Launch(const GroupedParams& params, const CudaContext& context,
              const GroupedCandidate& candidate);
Status Launch(const GroupedGradientParams& params, const CudaContext& context,
              const GradientCandidate& candidate);

}  // namespace intarsia::matmul
