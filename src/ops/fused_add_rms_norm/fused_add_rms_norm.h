// residual' = x + residual, rounded to T; out = rms_norm(residual') * weight. With rounding
// "before_weight" the norm is taken of the sum before it is rounded, and rounded before the weight.
#pragma once
#include "src/core/op.h"

namespace intarsia {

struct FusedAddRmsNorm {
  TensorView x, residual;
  Optional weight;
  float eps = 1e-6f;
  std::string_view rounding = "once";
  TensorView out, residual_out;

  static constexpr auto kSpec = MakeSpec(
      "fused_add_rms_norm", "Adds the residual stream, then root-mean-square normalization.",
      "vLLM's _C::fused_add_rms_norm",
      In("x", &FusedAddRmsNorm::x, "... n", "T", "what a block of the network adds")
          .Takes(Access::kEvenRows),
      In("residual", &FusedAddRmsNorm::residual, "... n", "T", "the residual stream")
          .Takes(Access::kEvenRows),
      In("weight", &FusedAddRmsNorm::weight, "n", "T|f32", "scale of each column; 1 if absent"),
      Attr("eps", &FusedAddRmsNorm::eps, "added to the mean square").NotNegative(),
      Attr("rounding", &FusedAddRmsNorm::rounding,
           "\"before_weight\" norms the unrounded sum and rounds to T before the weight")
          .OneOf("once|before_weight"),
      Out("out", &FusedAddRmsNorm::out, "... n", "T", "normalized rows").Mutates("x"),
      Out("residual", &FusedAddRmsNorm::residual_out, "... n", "T", "x + residual")
          .Mutates("residual"));

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
