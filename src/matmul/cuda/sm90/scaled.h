// The kernel of products of codes for Hopper.
#pragma once
#include "src/matmul/scaled.h"

namespace intarsia::matmul::sm90 {

// Whether the kernel can run the call at all, fast or not.
bool Supports(const ScaledParams& params);

template <DType kType>
Status LaunchScaledOf(const ScaledParams& params, const CudaContext& context);

}  // namespace intarsia::matmul::sm90
