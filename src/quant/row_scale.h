// Quantization of rows by scales of their own, which come from the largest absolute value in each:
// see RowRule in scaling.h.
#pragma once
#include "src/core/op.h"
#include "src/quant/scaling.h"

namespace intarsia {

// Rows of n elements: those of a tensor, or groups of them.
struct RowQuant {
  const TensorView &x, &q, &scale;
  int64_t n;
  RowRule rule;
};

}  // namespace intarsia
