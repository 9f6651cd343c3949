// layer_norm, rounded to T, then static_scaled_fp8_quant: the same codes as the two ops one after
// the other.
#pragma once
#include "src/core/op.h"

namespace intarsia {

struct LayerNormStaticFp8Quant {
  TensorView x, scale;
  Optional weight, bias;
  float eps = 1e-5f;
  TensorView q;

  static constexpr auto kSpec = MakeSpec(
      "layer_norm_static_fp8_quant", "Layer normalization, quantized by a given scale.",
      "layer_norm and static_scaled_fp8_quant",
      In("x", &LayerNormStaticFp8Quant::x, "... n", "T", "rows to normalize")
          .Takes(Access::kEvenRows),
      In("scale", &LayerNormStaticFp8Quant::scale, "1", "f32", "what a code of 1 stands for"),
      In("weight", &LayerNormStaticFp8Quant::weight, "n", "T|f32",
         "scale of each column; 1 if absent"),
      In("bias", &LayerNormStaticFp8Quant::bias, "n", "T|f32", "added to each column; 0 if absent"),
      Attr("eps", &LayerNormStaticFp8Quant::eps, "added to the variance").NotNegative(),
      Out("q", &LayerNormStaticFp8Quant::q, "... n", "f8e4m3fn", "codes of the normalized rows"));

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
