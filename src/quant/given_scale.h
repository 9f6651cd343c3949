// Quantization by scales that are given:
//   q = clamp(round(x * (1 / scale))) in fp8, clamp(round(x / scale)) in int8
// with the reciprocal rounded to f32 first. One scale for all, for each column, for each row, or
// for each group of n/g neighbors in each row. int8 may have a zero point for all, the code that
// stands for 0: q = clamp(round(x / scale) + azp).
#pragma once
#include "src/core/op.h"
#include "src/quant/scaling.h"

namespace intarsia {

struct GivenScaleQuant {
  TensorView x, scale, q;

  Status Check() const;
};

// Pointers, since GCC 12 with UBSan does not know in a constant expression that an array is not
// null.
inline constexpr const char* kGivenScaleDims = "1 | n | ... 1 | ... g";
inline constexpr const char* kGivenScaleDoc =
    "what a code of 1 stands for: in all of x, in each column, in each row, or in each of g equal "
    "groups of a row's columns";

// Where the scale of an element is: data[row * row_stride + column / columns].
struct GivenScales {
  const float* data;
  int64_t row_stride;
  int64_t columns;  // neighbors with one scale

  // Of rows of n > 0 elements.
  [[gnu::always_inline]] GivenScales(const TensorView& scale, int64_t n)
      : data(scale.as<const float>()),
        row_stride(scale.rank == 1 ? 0 : scale.dim(-1)),
        columns(n / scale.dim(-1)) {}
};

}  // namespace intarsia
