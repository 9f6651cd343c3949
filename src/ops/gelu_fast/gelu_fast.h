// out = x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), in f32 and rounded once. With
// round_steps each operation is rounded to T, as in vLLM's kernel:
//   u = (0.79788456 x) (1 + (0.044715 x) x), out = (0.5 x) (1 + tanh u).
// In 16 bits that costs most digits where x < -2: 1 + tanh u cancels.
#pragma once
#include "src/activation/elementwise.h"

namespace intarsia {

struct GeluFast : ElementwiseActivation {
  bool round_steps = false;

  static constexpr auto kSpec =
      ElementwiseSpec("gelu_fast", "GELU in its tanh form, in other steps than gelu_new.",
                      "Hendrycks and Gimpel 2016, arXiv:1606.08415; vLLM's _C::gelu_fast",
                      Attr("round_steps", &GeluFast::round_steps,
                           "whether each operation is rounded to T, as in vLLM"));

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
