// A linear layer with weights in codes: the operands, attributes and checks that its ops share.
// quantized.h has the mathematics and how codes, scales and zeros lie.
#pragma once
#include "src/core/op.h"
#include "src/matmul/weight_operands.h"

namespace intarsia {

struct QuantizedLinear {
  TensorView x, packed, scales;
  Optional zeros, outer_scales, outer_zeros, bias;
  std::string_view format = "u4";
  int64_t group = 0;
  std::string_view zeros_are = "points";
  std::string_view out_dtype = "auto";
  TensorView out;

  Status Check() const;

  matmul::QuantizedParams ToParams() const;
};

// `x` and `out`: the operand and the result of these names, as the op says them; `more`: what else
// it has.
template <class X, class Result, class... More>
consteval auto QuantizedLinearSpec(std::string_view name, std::string_view summary,
                                   std::string_view source, X x, Result out, More... more) {
  return MakeSpec(
      name, summary, source, x,
      In("packed", &QuantizedLinear::packed, INTARSIA_PACKED_DIMS("c kb"), "u8",
         "codes, tile by tile: 16 results, and kb blocks of 32 of the k columns, which take "
         "a line for each bit of a code"),
      In("scales", &QuantizedLinear::scales, "c kg 16", "f32|f16|bf16|u8|i8|f8e4m3fn|f8e8m0fnu",
         "what codes are multiplied by"),
      In("zeros", &QuantizedLinear::zeros, "c kg 16", "f32|f16|bf16|u8|i8",
         "what is subtracted from codes, or added to their products with scales"),
      In("outer_scales", &QuantizedLinear::outer_scales, "1 | c ko 16", "f32|f16|bf16",
         "what scales are multiplied by"),
      In("outer_zeros", &QuantizedLinear::outer_zeros, "1 | c ko 16", "f32|f16|bf16",
         "what minimums are multiplied by"),
      In("bias", &QuantizedLinear::bias, "16*c", "T", "added to the sums before they are rounded"),
      Attr("format", &QuantizedLinear::format, "what a code stands for")
          .OneOf(matmul::kFormatNames),
      Attr("group", &QuantizedLinear::group,
           "columns that share a scale: 16 or a multiple of 32; 0: all k of them"),
      Attr("zeros_are", &QuantizedLinear::zeros_are,
           "points are subtracted from codes, minimums added to their products with scales")
          .OneOf("points|minimums"),
      Attr("out_dtype", &QuantizedLinear::out_dtype, "dtype of the result; auto: that of x")
          .OneOf("auto|f32"),
      more..., out);
}

inline constexpr auto kLinearResult =
    Out("out", &QuantizedLinear::out, "... 16*c", "out_dtype", "x w^T + bias");

}  // namespace intarsia
