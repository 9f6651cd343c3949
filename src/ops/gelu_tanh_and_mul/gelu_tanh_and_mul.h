// The gated activation with the tanh form of GELU,
//   gelu(g) = g (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))) / 2.
#pragma once
#include "src/activation/gated.h"

namespace intarsia {

struct GeluTanhAndMul : GatedActivation {
  static constexpr auto kSpec = GatedSpec(
      "gelu_tanh_and_mul", "The gated activation of a Gemma's MLP: GELU in its tanh form.",
      "Hendrycks and Gimpel 2016, arXiv:1606.08415; vLLM's _C::gelu_tanh_and_mul");

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
