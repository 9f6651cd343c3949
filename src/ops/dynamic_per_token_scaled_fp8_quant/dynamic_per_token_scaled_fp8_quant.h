// scale[row] = max(min(max |x[row]|, scale_ub) / 448, 1 / (448 * 512)), NaN left out; q = x / scale
// as f8e4m3fn. NaN stays NaN; an infinity makes the scale infinite, finite numbers of its row 0 and
// itself NaN, unless scale_ub bounds the scale: then it saturates, as all beyond does.
#pragma once
#include "src/core/op.h"
#include "src/quant/row_scale.h"

namespace intarsia {

struct DynamicPerTokenScaledFp8Quant {
  TensorView x;
  Optional scale_ub;
  TensorView q, scale;

  static constexpr auto kSpec = MakeSpec(
      "dynamic_per_token_scaled_fp8_quant", "Quantizes each row to fp8 by a scale of its own.",
      "vLLM's _C::dynamic_per_token_scaled_fp8_quant",
      In("x", &DynamicPerTokenScaledFp8Quant::x, "... n", "T", "rows of numbers"),
      In("scale_ub", &DynamicPerTokenScaledFp8Quant::scale_ub, "1", "f32",
         "counts as a row's largest number where that is larger"),
      Out("q", &DynamicPerTokenScaledFp8Quant::q, "... n", "f8e4m3fn", "codes"),
      Out("scale", &DynamicPerTokenScaledFp8Quant::scale, "... 1", "f32",
          "what a code of 1 stands for"));

  [[gnu::always_inline]] RowQuant Rows() const {
    return {x, q, scale, x.dim(-1), TokenF8Rule(scale_ub)};
  }

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
