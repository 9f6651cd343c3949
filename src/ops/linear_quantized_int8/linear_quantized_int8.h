// linear_quantized of x rounded to int8: of each 32 neighbours q = x / s to the nearest integer,
// with s = max |x| / 127. Products of a block are sums of integers, and exact.
#pragma once
#include "src/matmul/quantized.h"
#include "src/ops/linear_quantized/linear_quantized.h"

namespace intarsia {

struct LinearQuantizedInt8 {
  TensorView x, packed, scales;
  Optional zeros, outer_scales, outer_zeros, bias;
  std::string_view format = "u4";
  int64_t group = 0;
  std::string_view zeros_are = "points";
  std::string_view out_dtype = "auto";
  TensorView out;

  static constexpr auto kSpec =
      MakeSpec(
          "linear_quantized_int8", "A linear layer of x in int8 with weights in 8 bits or less.",
          "ggml's products of blocks (ggml_vec_dot_q4_1_q8_1)",
          In("x", &LinearQuantizedInt8::x, "... k", "T", "rows, rounded to int8 in blocks of 32"),
          In("packed", &LinearQuantizedInt8::packed, INTARSIA_PACKED_DIMS("c kb"), "u8",
             "codes, tile by tile: 16 results, and kb blocks of 32 of the k columns, which take a "
             "line for each bit of a code"),
          In("scales", &LinearQuantizedInt8::scales, "c kg 16",
             "f32|f16|bf16|u8|i8|f8e4m3fn|f8e8m0fnu", "what codes are multiplied by"),
          In("zeros", &LinearQuantizedInt8::zeros, "c kg 16", "f32|f16|bf16|u8|i8",
             "what is subtracted from codes, or added to their products with scales"),
          In("outer_scales", &LinearQuantizedInt8::outer_scales, "1 | c ko 16", "f32|f16|bf16",
             "what scales are multiplied by"),
          In("outer_zeros", &LinearQuantizedInt8::outer_zeros, "1 | c ko 16", "f32|f16|bf16",
             "what minimums are multiplied by"),
          In("bias", &LinearQuantizedInt8::bias, "16*c", "T",
             "added to the sums before they are rounded"),
          Attr("format", &LinearQuantizedInt8::format, "what a code stands for")
              .OneOf(matmul::kFormatNames),
          Attr("group", &LinearQuantizedInt8::group,
               "columns that share a scale: 16 or a multiple of 32; 0: all k of them"),
          Attr("zeros_are", &LinearQuantizedInt8::zeros_are,
               "points are subtracted from codes, minimums added to their products with scales")
              .OneOf("points|minimums"),
          Attr("out_dtype", &LinearQuantizedInt8::out_dtype, "dtype of the result; auto: that of x")
              .OneOf("auto|f32"),
          Out("out", &LinearQuantizedInt8::out, "... 16*c", "out_dtype", "x w^T + bias"))
          .Separable("c")
          .On(Platform::kCpu);

  Status Check() const { return Plain().Check(); }
  Status Run(const CpuContext&) const;

  LinearQuantized Plain() const;  // the same call of x as it is
};

}  // namespace intarsia
