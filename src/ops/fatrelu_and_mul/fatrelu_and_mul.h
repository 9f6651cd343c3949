// The gated activation with fatrelu(g) = g where g > threshold, else 0; NaN stays NaN.
#pragma once
#include "src/activation/gated.h"

namespace intarsia {

struct FatreluAndMul : GatedActivation {
  float threshold = 0.0f;

  static constexpr auto kSpec =
      GatedSpec("fatrelu_and_mul", "The gated activation with a ReLU whose threshold is given.",
                "Kurtz et al. 2020, ICML (FATReLU); vLLM's _C::fatrelu_and_mul",
                Attr("threshold", &FatreluAndMul::threshold, "what a gate must exceed to pass"));

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
