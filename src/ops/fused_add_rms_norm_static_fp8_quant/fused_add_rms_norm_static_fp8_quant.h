// fused_add_rms_norm, its norm rounded to T, then static_scaled_fp8_quant: the same codes as the
// two ops one after the other.
#pragma once
#include "src/core/op.h"

namespace intarsia {

struct FusedAddRmsNormStaticFp8Quant {
  TensorView x, residual, weight, scale;
  float eps = 1e-6f;
  std::string_view rounding = "once";
  TensorView q, residual_out;

  static constexpr auto kSpec = MakeSpec(
      "fused_add_rms_norm_static_fp8_quant",
      "Adds the residual stream, then root-mean-square normalization, quantized by a given scale.",
      "vLLM's _C::fused_add_rms_norm_static_fp8_quant",
      In("x", &FusedAddRmsNormStaticFp8Quant::x, "... n", "T", "what a block of the network adds")
          .Takes(Access::kEvenRows),
      In("residual", &FusedAddRmsNormStaticFp8Quant::residual, "... n", "T", "the residual stream")
          .Takes(Access::kEvenRows),
      In("weight", &FusedAddRmsNormStaticFp8Quant::weight, "n", "T|f32", "scale of each column"),
      In("scale", &FusedAddRmsNormStaticFp8Quant::scale, "1", "f32", "what a code of 1 stands for"),
      Attr("eps", &FusedAddRmsNormStaticFp8Quant::eps, "added to the mean square").NotNegative(),
      Attr("rounding", &FusedAddRmsNormStaticFp8Quant::rounding,
           "\"before_weight\" norms the unrounded sum and rounds to T before the weight, too")
          .OneOf("once|before_weight"),
      Out("q", &FusedAddRmsNormStaticFp8Quant::q, "... n", "f8e4m3fn",
          "codes of the normalized rows"),
      Out("residual", &FusedAddRmsNormStaticFp8Quant::residual_out, "... n", "T", "x + residual")
          .Mutates("residual"));

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
