// Of each group of group_size neighbors: scale = max(max |x|, eps) / 127, NaN left out; q = x /
// scale, rounded toward zero as in vLLM. NaN becomes 0; an infinity makes the scale infinite, and 0
// of all numbers of its group, itself too.
#pragma once
#include "src/core/op.h"
#include "src/quant/row_scale.h"

namespace intarsia {

struct PerTokenGroupQuantInt8 {
  TensorView x;
  int64_t group_size = 128;
  float eps = 1e-10f;
  TensorView q, scale;

  static constexpr auto kSpec = MakeSpec(
      "per_token_group_quant_int8",
      "Quantizes groups of a row's neighbors to int8, each by a scale of its own.",
      "vLLM's _C::per_token_group_quant_int8",
      In("x", &PerTokenGroupQuantInt8::x, "... n", "T", "rows of numbers"),
      Attr("group_size", &PerTokenGroupQuantInt8::group_size, "how many neighbors share a scale"),
      Attr("eps", &PerTokenGroupQuantInt8::eps,
           "counts as a group's largest number where that is smaller")
          .NotNegative(),
      Out("q", &PerTokenGroupQuantInt8::q, "... n", "i8", "codes, rounded toward zero"),
      Out("scale", &PerTokenGroupQuantInt8::scale, "... n/group_size", "f32",
          "what a code of 1 stands for"));

  [[gnu::always_inline]] RowQuant Rows() const {
    return {x, q, scale, group_size, {.largest = kLargestI8, .least_absmax = eps}};
  }

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
