// linear_quantized of x rounded to int8: of each 32 neighbors q = x / s to the nearest integer,
// with s = max |x| / 127. Products of a block are sums of integers, and exact.
#pragma once
#include "src/matmul/quantized_linear.h"

namespace intarsia {

struct LinearQuantizedInt8 : QuantizedLinear {
  static constexpr auto kSpec =
      QuantizedLinearSpec(
          "linear_quantized_int8", "A linear layer of x in int8 with weights in 8 bits or less.",
          "ggml's products of blocks (ggml_vec_dot_q4_1_q8_1)",
          In("x", &QuantizedLinear::x, "... k", "T", "rows, rounded to int8 in blocks of 32"),
          kLinearResult)
          .Separable("c")
          .On(Platform::kCpu);

  Status Run(const CpuContext&) const;
};

}  // namespace intarsia
