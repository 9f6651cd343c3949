// A linear layer on the CPU, weights row by row as checkpoints have them:
//   out[.., j] = sum_i x[.., i] w[j, i] + bias[j], sums in f32, rounded once.
// On GPUs, matrix products are XLA's (docs/adr/0009-linear.md).
#pragma once
#include "src/core/op.h"

namespace intarsia {

struct Linear {
  TensorView x, w;
  Optional bias;
  std::string_view out_dtype = "auto";
  TensorView out;

  static constexpr auto kSpec =
      MakeSpec("linear", "A linear layer: x w^T, plus a bias.",
               "torch.nn.functional.linear",  //
               In("x", &Linear::x, "... k", "T", "rows"),
               In("w", &Linear::w, "n k", "T", "weights, a row for each result"),
               In("bias", &Linear::bias, "n", "T", "added to the sums before they are rounded"),
               Attr("out_dtype", &Linear::out_dtype, "dtype of the result; auto: that of x")
                   .OneOf("auto|f32"),
               Out("out", &Linear::out, "... n", "out_dtype", "x w^T + bias"))
          .Separable("n")
          .On(Platform::kCpu);

  Status Run(const CpuContext&) const;
};

}  // namespace intarsia
