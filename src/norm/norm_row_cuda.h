// Root-mean-square norm of rows on CUDA, for every op that ends in one.
#pragma once
#include <cstdint>

#include "src/core/context.h"
#include "src/core/status.h"
#include "src/core/tensor_view.h"

namespace intarsia::cuda {

// T stands for `dtype`.
struct NormArguments {
  DType dtype = DType::kOther;
  int64_t rows = 0, n = 0;
  const void* x = nullptr;            // T [rows, n]
  const void* residual = nullptr;     // T [rows, n]; null: none
  const void* weight = nullptr;       // T [n]; at most one of the two weights is set
  const float* weight_f32 = nullptr;  // [n]
  void* out = nullptr;                // T [rows, n]; may be x
  void* residual_out = nullptr;       // T [rows, n]: x + residual; may be residual
  float eps = 0.0f;
  bool before_weight = false;  // rounding; see rms_norm.h
};

NormArguments MakeNormArguments(const TensorView& x, const Optional& weight, float eps,
                                std::string_view rounding, const TensorView& out);

Status LaunchNorm(const CudaContext& context, const NormArguments& arguments);

}  // namespace intarsia::cuda
