// A linear layer with weights in 8 bits or less; src/matmul/quantized.h has the mathematics and how
// codes, scales and zeros lie.
#pragma once
#include "src/core/op.h"
#include "src/matmul/quantized.h"

namespace intarsia {

struct LinearQuantized {
  TensorView x, packed, scales;
  Optional zeros, outer_scales, outer_zeros, bias;
  std::string_view format = "u4";
  int64_t group = 0;
  std::string_view zeros_are = "points";
  std::string_view out_dtype = "auto";
  TensorView out;

  static constexpr auto kSpec =
      MakeSpec(
          "linear_quantized", "A linear layer with weights in 8 bits or less.",
          "torch.nn.functional.linear of dequantized weights; ggml's and vLLM's formats",
          In("x", &LinearQuantized::x, "... k", "T", "rows"),
          In("packed", &LinearQuantized::packed, INTARSIA_PACKED_DIMS("c kb"), "u8",
             "codes, tile by tile: 16 results, and kb blocks of 32 of the k columns, which take a "
             "line for each bit of a code"),
          In("scales", &LinearQuantized::scales, "c kg 16", "f32|f16|bf16|u8|i8|f8e4m3fn|f8e8m0fnu",
             "what codes are multiplied by"),
          In("zeros", &LinearQuantized::zeros, "c kg 16", "f32|f16|bf16|u8|i8",
             "what is subtracted from codes, or added to their products with scales"),
          In("outer_scales", &LinearQuantized::outer_scales, "1 | c ko 16", "f32|f16|bf16",
             "what scales are multiplied by"),
          In("outer_zeros", &LinearQuantized::outer_zeros, "1 | c ko 16", "f32|f16|bf16",
             "what minimums are multiplied by"),
          In("bias", &LinearQuantized::bias, "16*c", "T",
             "added to the sums before they are rounded"),
          Attr("format", &LinearQuantized::format, "what a code stands for")
              .OneOf(matmul::kFormatNames),
          Attr("group", &LinearQuantized::group,
               "columns that share a scale: 16 or a multiple of 32; 0: all k of them"),
          Attr("zeros_are", &LinearQuantized::zeros_are,
               "points are subtracted from codes, minimums added to their products with scales")
              .OneOf("points|minimums"),
          Attr("out_dtype", &LinearQuantized::out_dtype, "dtype of the result; auto: that of x")
              .OneOf("auto|f32"),
          Out("out", &LinearQuantized::out, "... 16*c", "out_dtype", "x w^T + bias"))
          .Separable("c");

  Status Check() const;
  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;

  matmul::QuantizedParams ToParams() const;
};

}  // namespace intarsia
