// scale = max |x| / 448 over all of x, NaN left out; q = x * (1 / scale) as f8e4m3fn, the
// reciprocal rounded to f32 first. All zeros: q and scale are 0. An infinity makes the scale
// infinite, finite numbers 0 and itself NaN.
#pragma once
#include "src/core/op.h"
#include "src/quant/scaling.h"

namespace intarsia {

struct DynamicScaledFp8Quant {
  TensorView x, q, scale;

  static constexpr RowRule kRule{.apply = RowRule::Apply::kReciprocal};
  static constexpr auto kSpec = MakeSpec(
      "dynamic_scaled_fp8_quant", "Quantizes to fp8 by one scale that x itself gives.",
      "vLLM's _C::dynamic_scaled_fp8_quant",
      In("x", &DynamicScaledFp8Quant::x, "...", "T", "numbers"),
      Out("q", &DynamicScaledFp8Quant::q, "...", "f8e4m3fn", "codes"),
      Out("scale", &DynamicScaledFp8Quant::scale, "1", "f32", "what a code of 1 stands for"));

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
