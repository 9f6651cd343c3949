// q = x / scale, rounded to nearest even and clamped to [-128, 127]. NaN becomes 0.
#pragma once
#include "src/quant/given_scale.h"

namespace intarsia {

struct StaticScaledInt8Quant : GivenScaleQuant {
  static constexpr auto kSpec =
      GivenScaleSpec("static_scaled_int8_quant", "Quantises to int8 by scales that are given.",
                     "vLLM's _C::static_scaled_int8_quant, symmetric", "i8");

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
