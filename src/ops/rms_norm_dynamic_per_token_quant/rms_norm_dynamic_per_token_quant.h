// y = round_T(s / sqrt(mean(s^2) + eps) * weight) with s = x, or x + residual, with the roundings
// between these that `rounding` says (rms_norm.h, fused_add_rms_norm.h; vLLM's kernel has
// "before_weight"), and residual' = round_T(x + residual). Then, by row, NaN left out of the
// largest:
//   fp8:  scale = max(min(max |y|, scale_ub) / 448, 1 / (448 * 512)); q = y / scale
//   int8: scale = max(min(max |y|, scale_ub) / 127, 2^-23);           q = y * (1 / scale)
// NaN and infinities as in dynamic_per_token_scaled_fp8_quant; in int8 they become 0.
#pragma once
#include "src/core/op.h"
#include "src/quant/scaling.h"

namespace intarsia {

struct RmsNormDynamicPerTokenQuant {
  TensorView x, weight;
  Optional scale_ub, residual;
  float eps = 1e-6f;
  std::string_view quant_dtype = "f8e4m3fn";
  std::string_view rounding = "before_weight";
  TensorView q, scale;
  TensorView residual_out;

  static constexpr auto kSpec = MakeSpec(
      "rms_norm_dynamic_per_token_quant",
      "Root-mean-square normalization, each row quantized by a scale of its own.",
      "vLLM's _C::rms_norm_dynamic_per_token_quant",
      In("x", &RmsNormDynamicPerTokenQuant::x, "... n", "T",
         "rows to normalize; with residual, what a block of the network adds")
          .Takes(Access::kEvenRows),
      In("weight", &RmsNormDynamicPerTokenQuant::weight, "n", "T|f32", "scale of each column"),
      In("scale_ub", &RmsNormDynamicPerTokenQuant::scale_ub, "1", "f32",
         "counts as a row's largest number where that is larger"),
      In("residual", &RmsNormDynamicPerTokenQuant::residual, "... n", "T",
         "the residual stream, added before the norm")
          .Takes(Access::kEvenRows),
      Attr("eps", &RmsNormDynamicPerTokenQuant::eps, "added to the mean square").NotNegative(),
      Attr("quant_dtype", &RmsNormDynamicPerTokenQuant::quant_dtype, "dtype of the codes")
          .OneOf("f8e4m3fn|i8"),
      Attr("rounding", &RmsNormDynamicPerTokenQuant::rounding,
           "\"before_weight\" norms the unrounded sum and rounds to T before the weight, too")
          .OneOf("once|before_weight"),
      Out("q", &RmsNormDynamicPerTokenQuant::q, "... n", "quant_dtype",
          "codes of the normalized rows"),
      Out("scale", &RmsNormDynamicPerTokenQuant::scale, "... 1", "f32",
          "what a code of 1 stands for"),
      Out("residual", &RmsNormDynamicPerTokenQuant::residual_out, "... n", "T", "x + residual")
          .Mutates("residual")
          .When("residual"));

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
