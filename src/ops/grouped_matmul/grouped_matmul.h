// Products of groups of rows, each with a matrix of its own; src/matmul/grouped.h has the
// mathematics, src/matmul/groups.h what sizes that do not fit mean.
#pragma once
#include "src/core/op.h"
#include "src/matmul/grouped.h"

namespace intarsia {

struct GroupedMatmul {
  TensorView x, w, group_sizes;
  Optional group_offset, rows, bias;
  bool transposed = false;
  std::string_view out_dtype = "auto";
  TensorView out;

  static constexpr auto kSpec =
      MakeSpec(
          "grouped_matmul", "Products of groups of rows, each with a matrix of its own.",
          "jax.lax.ragged_dot; MegaBlocks (Gale et al. 2022, arXiv:2211.15841)",
          In("x", &GroupedMatmul::x, "rows: mx k | !rows: m k", "T",
             "rows, group after group; with `rows`, in any order"),
          In("w", &GroupedMatmul::w, "transposed: g n k | !transposed: g k n", "T",
             "a matrix for each group"),
          In("group_sizes", &GroupedMatmul::group_sizes, "group_offset: e | !group_offset: g",
             "i32|i64", "rows of each group; a negative size counts as 0, and groups end at row m"),
          In("group_offset", &GroupedMatmul::group_offset, "1", "i32|i64",
             "which of all e groups w begins with; rows of the others give 0"),
          In("rows", &GroupedMatmul::rows, "m", "i32|i64",
             "which row of x each row takes; one without gives 0")
              .IndexesOrNegative("mx"),
          In("bias", &GroupedMatmul::bias, "g n", "T", "added to the sums before they are rounded"),
          Attr("transposed", &GroupedMatmul::transposed,
               "w has a row for each result, as checkpoints have it"),
          Attr("out_dtype", &GroupedMatmul::out_dtype, "dtype of the result; auto: that of x")
              .OneOf("auto|f32"),
          Out("out", &GroupedMatmul::out, "m n", "out_dtype",
              "products; 0 in rows behind the last group"))
          .Separable("n");

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;

  matmul::GroupedParams ToParams() const;
};

}  // namespace intarsia
