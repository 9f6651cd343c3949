// The tail of the normal distribution, for the CPU's registers and for CUDA:
//   Phi(-a) = e^(-a^2 / 2) NormalTail(t),  t = 1 / (1 + kNormalTailPole a),  a >= 0
// t times a polynomial in t, as in Hastings' approximations (Abramowitz and Stegun 1964, 7.1.26).
// The coefficients are a weighted least-squares fit that makes the largest relative error on 0 <= a
// <= 14.5 small: 3.2e-8, and 3.4e-7 with f32's roundings.
#pragma once

namespace intarsia {
namespace {

inline constexpr float kNormalTailPole = 0.35f;

template <class F>
[[gnu::always_inline]] constexpr F NormalTail(F t) {
  F p = -0.029157394543290138f * t + 0.14402872323989868f;
  p = p * t - 0.2558348476886749f;
  p = p * t + 0.15931537747383118f;
  p = p * t - 0.02320965752005577f;
  p = p * t + 0.10555147379636765f;
  p = p * t + 0.11982152611017227f;
  p = p * t + 0.1398634910583496f;
  p = p * t + 0.139621302485466f;
  return p * t;
}

}  // namespace
}  // namespace intarsia
