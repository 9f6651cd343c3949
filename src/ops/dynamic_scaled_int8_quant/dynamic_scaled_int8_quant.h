// scale[row] = max |x[row]| / 127, NaN left out; q = x * (127 / max |x[row]|), rounded to nearest
// even. A row of zeros has the scale 0. NaN becomes 0; an infinity makes the scale infinite, and 0
// of all numbers of its row, itself too.
#pragma once
#include "src/core/op.h"
#include "src/quant/row_scale.h"

namespace intarsia {

struct DynamicScaledInt8Quant {
  TensorView x, q, scale;

  static constexpr auto kSpec = MakeSpec(
      "dynamic_scaled_int8_quant", "Quantizes each row to int8 by a scale of its own.",
      "vLLM's _C::dynamic_scaled_int8_quant, symmetric",
      In("x", &DynamicScaledInt8Quant::x, "... n", "T", "rows of numbers"),
      Out("q", &DynamicScaledInt8Quant::q, "... n", "i8", "codes"),
      Out("scale", &DynamicScaledInt8Quant::scale, "... 1", "f32", "what a code of 1 stands for"));

  [[gnu::always_inline]] RowQuant Rows() const {
    return {x, q, scale, x.dim(-1), {.largest = kLargestI8, .apply = RowRule::Apply::kLargest}};
  }

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
