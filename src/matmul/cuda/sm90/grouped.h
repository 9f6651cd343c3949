// The kernels of grouped products for Hopper, of bf16 and f16.
#pragma once
#include "src/matmul/grouped.h"

namespace intarsia::matmul::sm90 {

// Whether the kernels can run the call at all, fast or not.
bool Supports(const GroupedParams& params);
bool Supports(const GroupedGradientParams& params);

// Whether CTAs can find and gather the rows of x (producer.cuh).
bool CanFindRows(const GroupSizes& groups, const IndexVector& rows, int64_t x_rows, int64_t k);

template <DType kType>
Status LaunchGroupedOf(const GroupedParams& params, const CudaContext& context, int tile_rows);
template <DType kType>
Status LaunchGroupedGradientOf(const GroupedGradientParams& params, const CudaContext& context);

}  // namespace intarsia::matmul::sm90
