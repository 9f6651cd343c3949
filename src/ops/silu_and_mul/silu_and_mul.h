// out = round_T(silu(gate)) * up, rounded to T, where silu(g) = g / (1 + exp(-g)) in f32. Equal to
// the two ops one after the other.
#pragma once
#include "src/core/op.h"

namespace intarsia {

struct SiluAndMul {
  TensorView x;
  Optional up;
  TensorView out;

  static constexpr auto kSpec =
      MakeSpec("silu_and_mul", "The gated activation of a Llama's MLP.",
               "Shazeer 2020, arXiv:2002.05202 (SwiGLU); vLLM's _C::silu_and_mul",
               In("x", &SiluAndMul::x, "up: ... n | ... 2*n", "T",
                  "gate and up side by side; the gate alone if up is given"),
               In("up", &SiluAndMul::up, "... n", "T",
                  "what the gate multiplies, when it is an array of its own"),
               Out("out", &SiluAndMul::out, "... n", "T", "the product"));

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
