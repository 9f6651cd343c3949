// out = x / sqrt(mean(x^2, last axis) + eps) * weight, in f32, rounded once at the end; or, with
// rounding "before_weight", x / sqrt(...) is rounded to T before it meets the weight.
#pragma once
#include "src/core/op.h"

namespace intarsia {

struct RmsNorm {
  TensorView x;
  Optional weight;
  float eps = 1e-6f;
  std::string_view rounding = "once";
  TensorView out;

  static constexpr auto kSpec =
      MakeSpec("rms_norm", "Root-mean-square normalization over the last axis.",
               "Zhang and Sennrich 2019, arXiv:1910.07467; vLLM's _C::rms_norm",
               In("x", &RmsNorm::x, "... n", "T", "rows to normalize").Takes(Access::kEvenRows),
               In("weight", &RmsNorm::weight, "n", "T|f32", "scale of each column; 1 if absent"),
               Attr("eps", &RmsNorm::eps, "added to the mean square").NotNegative(),
               Attr("rounding", &RmsNorm::rounding,
                    "\"before_weight\" rounds to T before the weight, as Hugging Face's Llama does")
                   .OneOf("once|before_weight"),
               Out("out", &RmsNorm::out, "... n", "T", "normalized rows"))
          .AlsoTarget("vllm_rms_norm_cuda");

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
