// out = -x, on CPUs alone.
#pragma once
#include "src/core/op.h"

namespace intarsia {

struct Negate {
  TensorView x, out;

  static constexpr auto kSpec = MakeSpec("negate", "Changes the sign.", "arithmetic",
                                         In("x", &Negate::x, "...", "T", "numbers"),
                                         Out("out", &Negate::out, "...", "T", "-x"))
                                    .On(Platform::kCpu);

  Status Run(const CpuContext&) const;
};

}  // namespace intarsia
