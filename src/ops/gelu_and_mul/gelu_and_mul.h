// The gated activation with gelu(g) = g (1 + erf(g / sqrt 2)) / 2: GEGLU.
#pragma once
#include "src/activation/gated.h"

namespace intarsia {

struct GeluAndMul : GatedActivation {
  static constexpr auto kSpec =
      GatedSpec("gelu_and_mul", "The gated activation with the exact GELU.",
                "Shazeer 2020, arXiv:2002.05202 (GEGLU); vLLM's _C::gelu_and_mul");

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
