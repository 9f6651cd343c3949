// scale[row] = (max x[row] - min x[row]) / 255, NaN left out; azp[row] = round(-128 - min / scale),
// to nearest even; q = x / scale, rounded so, plus azp, clamped to [-128, 127]: x is about
// (q - azp) * scale. NaN gets the code of 0. Where all numbers of a row are equal, scale, azp and
// codes are 0. Quotients and zero points beyond 2^29 count as it.
#pragma once
#include "src/core/op.h"
#include "src/quant/scaling.h"

namespace intarsia {

struct DynamicScaledInt8AzpQuant {
  TensorView x, q, scale, azp;

  static constexpr auto kSpec = MakeSpec(
      "dynamic_scaled_int8_azp_quant",
      "Quantizes each row to int8 by a scale and a zero point of its own.",
      "vLLM's _C::dynamic_scaled_int8_quant, asymmetric",
      In("x", &DynamicScaledInt8AzpQuant::x, "... n", "T", "rows of numbers"),
      Out("q", &DynamicScaledInt8AzpQuant::q, "... n", "i8", "codes"),
      Out("scale", &DynamicScaledInt8AzpQuant::scale, "... 1", "f32",
          "what a step of 1 in the codes stands for; 0 for a row of equal numbers, which is lost"),
      Out("azp", &DynamicScaledInt8AzpQuant::azp, "... 1", "i32", "the code that stands for 0"));

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
