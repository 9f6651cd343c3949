// A linear layer of codes: out = x w^T, where x and w are codes of 8 bits with scales.
// src/matmul/scaled.h has the mathematics.
#pragma once
#include "src/core/op.h"
#include "src/matmul/scaled.h"

namespace intarsia {

struct ScaledMatmul {
  TensorView x, w, x_scales, w_scales;
  Optional bias;
  std::string_view out_dtype = "bf16";
  TensorView out;

  static constexpr auto kSpec = MakeSpec(
      "scaled_matmul", "A linear layer of codes of 8 bits, fp8 or int8, each with scales.",
      "vLLM's cutlass_scaled_mm; DeepSeek-AI 2024, arXiv:2412.19437, section 3.3",
      In("x", &ScaledMatmul::x, "... k", "f8e4m3fn|i8", "codes, row by row"),
      In("w", &ScaledMatmul::w, "n k", "x", "codes of weights, a row for each result"),
      In("x_scales", &ScaledMatmul::x_scales, "1 | ... kb", "f32",
         "what codes of x are multiplied by: one for all, or for each row one (kb = 1) or one "
         "for each 128 columns"),
      In("w_scales", &ScaledMatmul::w_scales, "1 | n | nb wb", "f32",
         "what codes of w are multiplied by: one for all, one for each row, or one for each "
         "128 rows and 128 columns"),
      In("bias", &ScaledMatmul::bias, "n", "f32|f16|bf16",
         "added to the sums before they are rounded"),
      Attr("out_dtype", &ScaledMatmul::out_dtype, "dtype of the result").OneOf("bf16|f16|f32"),
      Out("out", &ScaledMatmul::out, "... n", "out_dtype", "x w^T + bias, of the numbers"));

  Status Check() const;
  matmul::ScaledParams ToParams() const;
  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
