// The gated activation with silu(g) = g / (1 + e^-g), the gate behind what it multiplies.
#pragma once
#include "src/activation/gated.h"

namespace intarsia {

struct MulAndSilu : GatedActivation {
  static constexpr auto kSpec =
      MakeSpec(
          "mul_and_silu", "The gated activation of a Llama's MLP, the gate in the second half.",
          "vLLM's _C::mul_and_silu",
          In("x", &GatedActivation::x, "gate: ... n | ... 2*n", "T",
             "up and gate side by side; up alone if gate is given"),
          In("gate", &GatedActivation::up, "... n", "T",
             "what is activated, when it is an array of its own, as a sharded last axis needs"),
          Out("out", &GatedActivation::out, "... n", "T", "the product"))
          .Separable("n");

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
