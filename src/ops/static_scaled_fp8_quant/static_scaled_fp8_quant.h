// q = x * (1 / scale), clamped to +-448 and rounded to nearest even as f8e4m3fn; the reciprocal is
// rounded to f32 first. NaN stays NaN.
#pragma once
#include "src/quant/given_scale.h"

namespace intarsia {

struct StaticScaledFp8Quant : GivenScaleQuant {
  static constexpr auto kSpec = MakeSpec(
      "static_scaled_fp8_quant", "Quantizes to fp8 by scales that are given.",
      "vLLM's _C::static_scaled_fp8_quant", In("x", &GivenScaleQuant::x, "... n", "T", "numbers"),
      In("scale", &GivenScaleQuant::scale, kGivenScaleDims, "f32", kGivenScaleDoc),
      Out("q", &GivenScaleQuant::q, "... n", "f8e4m3fn", "codes"));

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
