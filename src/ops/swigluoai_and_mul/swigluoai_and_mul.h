// The gated activation of gpt-oss. With g = min(gate, limit) and u = up within +-limit:
//   out = g / (1 + e^(-alpha g)) * (u + 1), rounded once.
// Gate and up take turns in x: gate 0, up 0, gate 1, up 1, ... NaN stays NaN.
#pragma once
#include "src/activation/gated.h"

namespace intarsia {

struct SwigluoaiAndMul : GatedActivation {
  float alpha = 1.702f, limit = 7.0f;

  static constexpr auto kSpec = MakeSpec(
      "swigluoai_and_mul",
      "The gated activation of gpt-oss: clamped, up plus 1, gate and up in turn.",
      "OpenAI 2025, gpt-oss model card, arXiv:2508.10925; vLLM's _C::swigluoai_and_mul",
      In("x", &GatedActivation::x, "up: ... n | ... 2*n", "T",
         "gate and up in turn, a pair for each column; the gate alone if up is given"),
      In("up", &GatedActivation::up, "... n", "T",
         "what the gate multiplies, when it is an array of its own"),
      Attr("alpha", &SwigluoaiAndMul::alpha, "what the gate's logistic curve is steeper by"),
      Attr("limit", &SwigluoaiAndMul::limit,
           "the most that a gate counts as, and the most size of up"),
      Out("out", &GatedActivation::out, "... n", "T", "the product"));

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
