// out = (x - mean) / sqrt(variance + eps) * weight + bias over the last axis, in f32, rounded once
// at the end; the variance is mean((x - mean)^2).
#pragma once
#include "src/core/op.h"

namespace intarsia {

struct LayerNorm {
  TensorView x;
  Optional weight, bias;
  float eps = 1e-5f;
  TensorView out;

  static constexpr auto kSpec =
      MakeSpec("layer_norm", "Layer normalization over the last axis.",
               "Ba, Kiros and Hinton 2016, arXiv:1607.06450; torch's layer_norm",
               In("x", &LayerNorm::x, "... n", "T", "rows to normalize").Takes(Access::kEvenRows),
               In("weight", &LayerNorm::weight, "n", "T|f32", "scale of each column; 1 if absent"),
               In("bias", &LayerNorm::bias, "n", "T|f32", "added to each column; 0 if absent"),
               Attr("eps", &LayerNorm::eps, "added to the variance").NotNegative(),
               Out("out", &LayerNorm::out, "... n", "T", "normalized rows"));

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
