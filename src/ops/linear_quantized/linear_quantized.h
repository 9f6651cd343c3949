// A linear layer with weights in 8 bits or less.
#pragma once
#include "src/matmul/quantized_linear.h"

namespace intarsia {

struct LinearQuantized : QuantizedLinear {
  static constexpr auto kSpec =
      QuantizedLinearSpec(
          "linear_quantized", "A linear layer with weights in 8 bits or less.",
          "torch.nn.functional.linear of dequantized weights; ggml's and vLLM's formats",
          In("x", &QuantizedLinear::x, "... k", "T", "rows"), kLinearResult)
          .Separable("c");

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
