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

// x / (1 + e^-1.702 x)
struct Logistic {
  [[gnu::always_inline]] VecF operator()(VecF x) const {
    return TimesSigmoid(x, kGeluQuickSlope * x);
  }
};
// x above the threshold, else 0; NaN stays.
struct FatRelu {
  float threshold = 0.0f;
  [[gnu::always_inline]] VecF operator()(VecF x) const { return Select(x <= threshold, VecF{}, x); }
};

// NaN stays.
[[gnu::always_inline]] inline VecF AtMost(VecF x, float limit) {
  return Select(x > limit, Splat(limit), x);
}
[[gnu::always_inline]] inline VecF Within(VecF x, float limit) {
  return Select(x < -limit, Splat(-limit), AtMost(x, limit));
}

// g / (1 + e^(-alpha g)) rounded to T, times u + beta; g = min(gate, limit) in T, u = up within
// +-limit.
struct ClampedSilu {
  float limit, alpha, beta;
  template <class T>
  [[gnu::always_inline]] VecF operator()(VecF gate, VecF up, T t) const {
    const VecF g = RoundTo(AtMost(gate, limit), t);
    return RoundTo(TimesSigmoid(g, alpha * g), t) * (Within(up, limit) + beta);
  }
};
// g / (1 + e^(-alpha g)) * (u + 1), with g = min(gate, limit) and u = up within +-limit.
struct SwigluOai {
  float alpha, limit;
  template <class T>
  [[gnu::always_inline]] VecF operator()(VecF gate, VecF up, T) const {
    const VecF g = AtMost(gate, limit);
    return TimesSigmoid(g, alpha * g) * (Within(up, limit) + 1.0f);
  }
};

// x (1 + t) / 2, each operation rounded to T.
template <class T>
[[gnu::always_inline]] inline VecF HalfTimesOnePlus(VecF x, VecF t, T type) {
  return RoundTo(RoundTo(0.5f * x, type) * RoundTo(1.0f + t, type), type);
}
// GeluTanh in the steps of vLLM's gelu_new, each rounded to T.
struct GeluNewSteps {
  template <class T>
  [[gnu::always_inline]] VecF operator()(VecF x, T t) const {
    const VecF cube = RoundTo(RoundTo(x * x, t) * x, t);
    const VecF sum = RoundTo(x + RoundTo(kGeluCubic * cube, t), t);
    return HalfTimesOnePlus(x, RoundTo(Tanh(RoundTo(kGeluScale * sum, t)), t), t);
  }
};
// The same in those of gelu_fast.
struct GeluFastSteps {
  template <class T>
  [[gnu::always_inline]] VecF operator()(VecF x, T t) const {
    const VecF square = RoundTo(RoundTo(kGeluCubic * x, t) * x, t);
    const VecF u = RoundTo(RoundTo(kGeluScale * x, t) * RoundTo(1.0f + square, t), t);
    return HalfTimesOnePlus(x, RoundTo(Tanh(u), t), t);
  }
};

}  // namespace
}  // namespace intarsia
