// The gradient of grouped_matmul in its weights; src/matmul/grouped.h has the mathematics.
#pragma once
#include "src/core/op.h"
#include "src/matmul/grouped.h"

namespace intarsia {

struct GroupedMatmulWeightGradient {
  TensorView x, d_out, group_sizes;
  Optional group_offset;
  std::optional<int64_t> num_groups;
  std::string_view out_dtype = "auto";
  TensorView out;

  static constexpr auto kSpec =
      MakeSpec("grouped_matmul_weight_gradient",
               "For each group the product of its rows of x, transposed, and of d_out.",
               "jax.lax.ragged_dot_general with a ragged contraction",
               In("x", &GroupedMatmulWeightGradient::x, "m k", "T", "rows, group after group"),
               In("d_out", &GroupedMatmulWeightGradient::d_out, "m n", "T",
                  "rows that belong to those of x"),
               In("group_sizes", &GroupedMatmulWeightGradient::group_sizes, "e", "i32|i64",
                  "rows of each group; a negative size counts as 0, and groups end at row m"),
               In("group_offset", &GroupedMatmulWeightGradient::group_offset, "1", "i32|i64",
                  "which of all e groups the result begins with"),
               Attr("num_groups", &GroupedMatmulWeightGradient::num_groups,
                    "groups of the result; default: all"),
               Attr("out_dtype", &GroupedMatmulWeightGradient::out_dtype,
                    "dtype of the result; auto: that of x")
                   .OneOf("auto|f32"),
               Out("out", &GroupedMatmulWeightGradient::out,
                   "num_groups: num_groups k n | !num_groups: e k n", "out_dtype",
                   "products; 0 for a group without rows"));

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;

  matmul::GroupedGradientParams ToParams() const;
};

}  // namespace intarsia
