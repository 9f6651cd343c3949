// out = sqrt(sum of x^2 over the last axis), summed in f32 and rounded once: a reduction as small
// as it gets, on CPUs and GPUs.
#pragma once
#include "src/core/op.h"

namespace intarsia {

struct RowNorm {
  TensorView x, out;

  static constexpr auto kSpec =
      MakeSpec("row_norm", "Euclidean norm of each row.", "linear algebra",
               In("x", &RowNorm::x, "... n", "T", "rows").Takes(Access::kEvenRows),
               Out("out", &RowNorm::out, "...", "T", "norm of each row"));

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
