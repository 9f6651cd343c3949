// out = x / (1 + e^(-1.702 x)), in f32 and rounded once.
#pragma once
#include "src/activation/elementwise.h"

namespace intarsia {

struct GeluQuick : ElementwiseActivation {
  static constexpr auto kSpec =
      ElementwiseSpec("gelu_quick", "GELU by a logistic curve, as CLIP has it.",
                      "Hendrycks and Gimpel 2016, arXiv:1606.08415; vLLM's _C::gelu_quick");

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
