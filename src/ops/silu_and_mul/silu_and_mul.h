// The gated activation with silu(g) = g / (1 + exp(-g)): SwiGLU.
#pragma once
#include "src/activation/gated.h"

namespace intarsia {

struct SiluAndMul : GatedActivation {
  static constexpr auto kSpec =
      GatedSpec("silu_and_mul", "The gated activation of a Llama's MLP.",
                "Shazeer 2020, arXiv:2002.05202 (SwiGLU); vLLM's _C::silu_and_mul");

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
