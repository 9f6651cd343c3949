// The portable kernels of products with weights in codes.
#pragma once
#include "src/matmul/cuda/quantized_plan.h"

namespace intarsia::matmul {

template <DType kType>
Status LaunchQuantizedOf(const QuantizedParams& params, const QuantizedPlan& plan,
                         const CudaContext& context);

// For few rows of x in f16 or bf16.
template <DType kType>
Status LaunchStreamOf(const QuantizedParams& params, const QuantizedPlan& plan,
                      const CudaContext& context);

// For up to 8 rows of x in f16 or bf16.
template <DType kType>
Status LaunchRowOf(const QuantizedParams& params, const QuantizedPlan& plan,
                   const CudaContext& context);

// Of groups of rows, by a plan for them (PlanForGroups).
template <DType kType>
Status LaunchGroupedCodesOf(const QuantizedGroupsParams& params, const QuantizedPlan& plan,
                            const CudaContext& context);

}  // namespace intarsia::matmul
