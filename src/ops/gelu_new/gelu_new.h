// out = x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), in f32 and rounded once. With
// round_steps each operation is rounded to T, as in vLLM's kernel:
//   x^3 = (x x) x, u = 0.79788456 (x + 0.044715 x^3), out = (0.5 x) (1 + tanh u).
// In 16 bits that costs most digits where x < -2: 1 + tanh u cancels.
#pragma once
#include "src/activation/elementwise.h"

namespace intarsia {

struct GeluNew : ElementwiseActivation {
  bool round_steps = false;

  static constexpr auto kSpec =
      ElementwiseSpec("gelu_new", "GELU in its tanh form, as GPT-2 has it.",
                      "Hendrycks and Gimpel 2016, arXiv:1606.08415; vLLM's _C::gelu_new",
                      Attr("round_steps", &GeluNew::round_steps,
                           "whether each operation is rounded to T, as in vLLM"));

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
