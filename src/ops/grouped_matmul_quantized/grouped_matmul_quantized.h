// Products of groups of rows, each with a matrix of its own in 8 bits or less;
// src/matmul/quantized.h has the mathematics and how codes lie, src/matmul/groups.h what sizes that
// do not fit mean.
#pragma once
#include "src/core/op.h"
#include "src/matmul/weight_operands.h"

namespace intarsia {

struct GroupedMatmulQuantized {
  TensorView x, packed, scales, group_sizes;
  Optional zeros, group_offset, rows, bias, outer_scales, outer_zeros;
  std::string_view format = "u4";
  int64_t group = 0;
  std::string_view zeros_are = "points";
  std::string_view out_dtype = "auto";
  TensorView out;

  static constexpr auto kSpec =
      MakeSpec(
          "grouped_matmul_quantized",
          "Products of groups of rows, each with a matrix of its own in 8 bits or less.",
          "grouped_matmul of dequantized weights; vLLM's and gpt-oss's formats",
          In("x", &GroupedMatmulQuantized::x, "rows: mx k | !rows: m k", "T",
             "rows, group after group; with `rows`, in any order"),
          In("packed", &GroupedMatmulQuantized::packed, INTARSIA_PACKED_DIMS("g c kb"), "u8",
             "codes of a matrix for each group, as in linear_quantized"),
          In("scales", &GroupedMatmulQuantized::scales, "g c kg 16",
             "f32|f16|bf16|u8|i8|f8e4m3fn|f8e8m0fnu", "what codes are multiplied by"),
          In("group_sizes", &GroupedMatmulQuantized::group_sizes,
             "group_offset: e | !group_offset: g", "i32|i64",
             "rows of each group; a negative size counts as 0, and groups end at row m"),
          In("zeros", &GroupedMatmulQuantized::zeros, "g c kg 16", "f32|f16|bf16|u8|i8",
             "what is subtracted from codes, or added to their products with scales"),
          In("group_offset", &GroupedMatmulQuantized::group_offset, "1", "i32|i64",
             "which of all e groups the matrices begin with; rows of the others give 0"),
          In("rows", &GroupedMatmulQuantized::rows, "m", "i32|i64",
             "which row of x each row takes; one without gives 0")
              .IndexesOrNegative("mx"),
          In("bias", &GroupedMatmulQuantized::bias, "g 16*c", "T",
             "added to the sums before they are rounded"),
          In("outer_scales", &GroupedMatmulQuantized::outer_scales, "g | g c ko 16", "f32|f16|bf16",
             "what scales are multiplied by"),
          In("outer_zeros", &GroupedMatmulQuantized::outer_zeros, "g | g c ko 16", "f32|f16|bf16",
             "what minimums are multiplied by"),
          Attr("format", &GroupedMatmulQuantized::format, "what a code stands for")
              .OneOf(matmul::kFormatNames),
          Attr("group", &GroupedMatmulQuantized::group,
               "columns that share a scale: 16 or a multiple of 32; 0: all k of them"),
          Attr("zeros_are", &GroupedMatmulQuantized::zeros_are,
               "points are subtracted from codes, minimums added to their products with scales")
              .OneOf("points|minimums"),
          Attr("out_dtype", &GroupedMatmulQuantized::out_dtype,
               "dtype of the result; auto: that of x")
              .OneOf("auto|f32"),
          Out("out", &GroupedMatmulQuantized::out, "m 16*c", "out_dtype",
              "products; 0 in rows behind the last group"))
          .Separable("c");

  Status Check() const;
  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;

  matmul::QuantizedGroupsParams ToParams() const;
};

}  // namespace intarsia
