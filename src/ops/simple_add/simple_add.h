// out = a + b, rounded once.
#pragma once
#include "src/core/op.h"

namespace intarsia {

struct SimpleAdd {
  TensorView a, b;
  TensorView out;

  static constexpr auto kSpec =
      MakeSpec("simple_add", "Elementwise sum of two arrays of one shape.",
               "the smallest op there is", In("a", &SimpleAdd::a, "...", "T", "one summand"),
               In("b", &SimpleAdd::b, "...", "T", "the other"),
               Out("out", &SimpleAdd::out, "...", "T", "a + b"))
          .AlsoTarget("XlaGpuSimpleAdd");

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
