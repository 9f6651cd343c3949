// layer_norm, rounded to T; then each row by a scale of its own, as in
// rms_norm_dynamic_per_token_quant.
#pragma once
#include "src/core/op.h"
#include "src/quant/scaling.h"

namespace intarsia {

struct LayerNormDynamicPerTokenQuant {
  TensorView x;
  Optional weight, bias, scale_ub;
  float eps = 1e-5f;
  std::string_view quant_dtype = "f8e4m3fn";
  TensorView q, scale;

  static constexpr auto kSpec = MakeSpec(
      "layer_norm_dynamic_per_token_quant",
      "Layer normalization, each row quantized by a scale of its own.",
      "layer_norm, then vLLM's _C::dynamic_per_token_scaled_fp8_quant or its like in int8",
      In("x", &LayerNormDynamicPerTokenQuant::x, "... n", "T", "rows to normalize")
          .Takes(Access::kEvenRows),
      In("weight", &LayerNormDynamicPerTokenQuant::weight, "n", "T|f32",
         "scale of each column; 1 if absent"),
      In("bias", &LayerNormDynamicPerTokenQuant::bias, "n", "T|f32",
         "added to each column; 0 if absent"),
      In("scale_ub", &LayerNormDynamicPerTokenQuant::scale_ub, "1", "f32",
         "counts as a row's largest number where that is larger"),
      Attr("eps", &LayerNormDynamicPerTokenQuant::eps, "added to the variance").NotNegative(),
      Attr("quant_dtype", &LayerNormDynamicPerTokenQuant::quant_dtype, "dtype of the codes")
          .OneOf("f8e4m3fn|i8"),
      Out("q", &LayerNormDynamicPerTokenQuant::q, "... n", "quant_dtype",
          "codes of the normalized rows"),
      Out("scale", &LayerNormDynamicPerTokenQuant::scale, "... 1", "f32",
          "what a code of 1 stands for"));

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
