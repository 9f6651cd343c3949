// q = x * (1 / scale), clamped to +-448 and rounded to nearest even as f8e4m3fn; the reciprocal is
// rounded to f32 first. NaN stays NaN.
#pragma once
#include "src/quant/given_scale.h"

namespace intarsia {

struct StaticScaledFp8Quant : GivenScaleQuant {
  static constexpr auto kSpec =
      GivenScaleSpec("static_scaled_fp8_quant", "Quantises to fp8 by scales that are given.",
                     "vLLM's _C::static_scaled_fp8_quant", "f8e4m3fn");

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
