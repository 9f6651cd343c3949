// With g = min(gate, limit) rounded to T, and u = up within +-limit:
//   out = round_T(g / (1 + e^(-alpha g))) * (u + beta), rounded to T.
// NaN stays NaN. vLLM's own kernel makes the limit of it.
#pragma once
#include "src/activation/gated.h"

namespace intarsia {

struct SiluAndMulWithClamp : GatedActivation {
  std::optional<float> limit;
  float alpha = 1.0f, beta = 0.0f;

  static constexpr auto kSpec = GatedSpec(
      "silu_and_mul_with_clamp",
      "The gated activation of a Llama's MLP, gate and up clamped before it.",
      "vLLM's _C::silu_and_mul_with_clamp",
      Attr("limit", &SiluAndMulWithClamp::limit,
           "the most that a gate counts as, and the most size of up; no limit if absent"),
      Attr("alpha", &SiluAndMulWithClamp::alpha, "what the gate's logistic curve is steeper by"),
      Attr("beta", &SiluAndMulWithClamp::beta, "added to up"));

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
