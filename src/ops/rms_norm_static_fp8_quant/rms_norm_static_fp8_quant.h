// rms_norm, rounded to T, then static_scaled_fp8_quant: the same codes as the two ops one after the
// other.
#pragma once
#include "src/core/op.h"

namespace intarsia {

struct RmsNormStaticFp8Quant {
  TensorView x, weight, scale;
  float eps = 1e-6f;
  std::string_view rounding = "once";
  TensorView q;

  static constexpr auto kSpec = MakeSpec(
      "rms_norm_static_fp8_quant", "Root-mean-square normalization, quantized by a given scale.",
      "vLLM's _C::rms_norm_static_fp8_quant",
      In("x", &RmsNormStaticFp8Quant::x, "... n", "T", "rows to normalize")
          .Takes(Access::kEvenRows),
      In("weight", &RmsNormStaticFp8Quant::weight, "n", "T|f32", "scale of each column"),
      In("scale", &RmsNormStaticFp8Quant::scale, "1", "f32", "what a code of 1 stands for"),
      Attr("eps", &RmsNormStaticFp8Quant::eps, "added to the mean square").NotNegative(),
      Attr("rounding", &RmsNormStaticFp8Quant::rounding,
           "\"before_weight\" rounds to T before the weight, too, as Hugging Face's Llama does")
          .OneOf("once|before_weight"),
      Out("q", &RmsNormStaticFp8Quant::q, "... n", "f8e4m3fn", "codes of the normalized rows"));

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
