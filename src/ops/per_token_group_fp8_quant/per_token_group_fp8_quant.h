// Of each group of group_size neighbors: scale = max(max |x|, eps) / 448, NaN left out; q = x /
// scale as f8e4m3fn. With scale_ue8m0 the scale is rounded up to a power of two, of 1e-10 at least.
// NaN stays NaN; an infinity makes the scale infinite, finite numbers 0 and itself NaN.
#pragma once
#include "src/core/op.h"
#include "src/quant/row_scale.h"

namespace intarsia {

struct PerTokenGroupFp8Quant {
  TensorView x;
  int64_t group_size = 128;
  float eps = 1e-10f;
  bool scale_ue8m0 = false;
  TensorView q, scale;

  static constexpr auto kSpec = MakeSpec(
      "per_token_group_fp8_quant",
      "Quantizes groups of a row's neighbors to fp8, each by a scale of its own.",
      "vLLM's _C::per_token_group_fp8_quant; DeepSeek-AI 2024, arXiv:2412.19437, section 3.3",
      In("x", &PerTokenGroupFp8Quant::x, "... n", "T", "rows of numbers"),
      Attr("group_size", &PerTokenGroupFp8Quant::group_size, "how many neighbors share a scale"),
      Attr("eps", &PerTokenGroupFp8Quant::eps,
           "counts as a group's largest number where that is smaller")
          .NotNegative(),
      Attr("scale_ue8m0", &PerTokenGroupFp8Quant::scale_ue8m0,
           "whether scales are rounded up to powers of two, as E8M0 holds them"),
      Out("q", &PerTokenGroupFp8Quant::q, "... n", "f8e4m3fn", "codes"),
      Out("scale", &PerTokenGroupFp8Quant::scale, "... n/group_size", "f32",
          "what a code of 1 stands for"));

  [[gnu::always_inline]] RowQuant Rows() const {
    return {x,
            q,
            scale,
            group_size,
            {.least_absmax = eps,
             .least_scale = scale_ue8m0 ? 1e-10f : 0.0f,
             .power_of_two = scale_ue8m0}};
  }

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
