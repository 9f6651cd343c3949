// The activations on registers of f32. For <op>_cpu.cc files only, like simd.h.
#pragma once
#include "src/activation/constants.h"
#include "src/core/cpu/simd.h"

namespace intarsia {
namespace {

// x / (1 + e^-v), where v has the sign of x. By e^-|v|, which never overflows.
[[gnu::always_inline]] inline VecF TimesSigmoid(VecF x, VecF v) {
  const VecF e = Exp(-Abs(v));
  return Select(v < 0.0f, x * e, x) / (1.0f + e);
}

// x / (1 + e^-x)
struct Silu {
  [[gnu::always_inline]] VecF operator()(VecF x) const { return TimesSigmoid(x, x); }
};
// x Phi(x), Phi being the normal distribution function: x (1 + erf(x / sqrt 2)) / 2
struct Gelu {
  [[gnu::always_inline]] VecF operator()(VecF x) const { return x * NormalCdf(x); }
};
// x (1 + tanh u) / 2 = x / (1 + e^-2u) with u = sqrt(2 / pi) (x + 0.044715 x^3)
struct GeluTanh {
  [[gnu::always_inline]] VecF operator()(VecF x) const {
    return TimesSigmoid(x, x * (kGeluTanhLinear + kGeluTanhCubic * (x * x)));
  }
};

}  // namespace
}  // namespace intarsia
