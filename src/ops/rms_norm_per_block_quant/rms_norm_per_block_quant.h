// As rms_norm_dynamic_per_token_quant, but for each group of group_size neighbors in a row a scale
// of its own, from the group's largest number.
#pragma once
#include "src/core/op.h"
#include "src/quant/scaling.h"

namespace intarsia {

struct RmsNormPerBlockQuant {
  TensorView x, weight;
  Optional scale_ub, residual;
  int64_t group_size = 128;
  float eps = 1e-6f;
  std::string_view quant_dtype = "f8e4m3fn";
  std::string_view rounding = "before_weight";
  TensorView q, scale;
  TensorView residual_out;

  static constexpr auto kSpec = MakeSpec(
      "rms_norm_per_block_quant",
      "Root-mean-square normalization, groups of a row quantized by scales of their own.",
      "vLLM's _C::rms_norm_per_block_quant",
      In("x", &RmsNormPerBlockQuant::x, "... n", "T",
         "rows to normalize; with residual, what a block of the network adds")
          .Takes(Access::kEvenRows),
      In("weight", &RmsNormPerBlockQuant::weight, "n", "T|f32", "scale of each column"),
      In("scale_ub", &RmsNormPerBlockQuant::scale_ub, "1", "f32",
         "counts as a group's largest number where that is larger"),
      In("residual", &RmsNormPerBlockQuant::residual, "... n", "T",
         "the residual stream, added before the norm")
          .Takes(Access::kEvenRows),
      Attr("group_size", &RmsNormPerBlockQuant::group_size, "how many neighbors share a scale"),
      Attr("eps", &RmsNormPerBlockQuant::eps, "added to the mean square").NotNegative(),
      Attr("quant_dtype", &RmsNormPerBlockQuant::quant_dtype, "dtype of the codes")
          .OneOf("f8e4m3fn|i8"),
      Attr("rounding", &RmsNormPerBlockQuant::rounding,
           "\"before_weight\" norms the unrounded sum and rounds to T before the weight, too")
          .OneOf("once|before_weight"),
      Out("q", &RmsNormPerBlockQuant::q, "... n", "quant_dtype", "codes of the normalized rows"),
      Out("scale", &RmsNormPerBlockQuant::scale, "... n/group_size", "f32",
          "what a code of 1 stands for"),
      Out("residual", &RmsNormPerBlockQuant::residual_out, "... n", "T", "x + residual")
          .Mutates("residual")
          .When("residual"));

  Status Check() const;
  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
