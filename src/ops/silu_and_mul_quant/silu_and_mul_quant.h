// silu_and_mul, then static_scaled_fp8_quant: the same codes as the two ops one after the other.
// (So it was in vLLM, too, until 2026, when its op went over to rounding once.)
#pragma once
#include "src/activation/gated.h"

namespace intarsia {

struct SiluAndMulQuant : GatedActivation {
  TensorView scale;

  static constexpr auto kSpec =
      MakeSpec("silu_and_mul_quant",
               "The gated activation of a Llama's MLP, quantized by a given scale.",
               "vLLM's _C::silu_and_mul_quant",
               In("x", &GatedActivation::x, "up: ... n | ... 2*n", "T",
                  "gate and up side by side; the gate alone if up is given"),
               In("scale", &SiluAndMulQuant::scale, "1", "f32", "what a code of 1 stands for"),
               In("up", &GatedActivation::up, "... n", "T",
                  "what the gate multiplies, when it is an array of its own, as a sharded last "
                  "axis needs"),
               Out("q", &GatedActivation::out, "... n", "f8e4m3fn", "codes of the product"))
          .Separable("n");

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
