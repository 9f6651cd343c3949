// Of the tanh form of GELU (Hendrycks and Gimpel 2016, arXiv:1606.08415):
//   2u = 2 sqrt(2 / pi) (x + 0.044715 x^3)
#pragma once

namespace intarsia {

inline constexpr float kGeluScale = 0.79788456f, kGeluCubic = 0.044715f;  // sqrt(2 / pi)
inline constexpr float kGeluTanhLinear = 1.5957691216057308f;
inline constexpr float kGeluTanhCubic = kGeluCubic * kGeluTanhLinear;
// Of GELU by a logistic curve (ibid., section 2).
inline constexpr float kGeluQuickSlope = 1.702f;

}  // namespace intarsia
