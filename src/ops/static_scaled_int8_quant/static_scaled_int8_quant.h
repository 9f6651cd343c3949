// q = x / scale, rounded to nearest even, plus azp, clamped to [-128, 127]. NaN becomes the code of
// 0. Quotients and zero points beyond 2^29 count as it.
#pragma once
#include "src/quant/given_scale.h"

namespace intarsia {

struct StaticScaledInt8Quant : GivenScaleQuant {
  Optional azp;

  static constexpr auto kSpec = MakeSpec(
      "static_scaled_int8_quant", "Quantizes to int8 by scales that are given.",
      "vLLM's _C::static_scaled_int8_quant", In("x", &GivenScaleQuant::x, "... n", "T", "numbers"),
      In("scale", &GivenScaleQuant::scale, kGivenScaleDims, "f32", kGivenScaleDoc),
      In("azp", &StaticScaledInt8Quant::azp, "1", "i32", "the code that stands for 0; 0 if absent"),
      Out("q", &GivenScaleQuant::q, "... n", "i8", "codes"));

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
