// From numbers to codes of 8 bits, and the scales that undo it: x is about code * scale.
//
// The order of operations is vLLM's, op by op (csrc/quantization, 2026-08), so that the codes are
// its codes: where it multiplies by a reciprocal, a division would give a neighbor now and then.
// Two things differ, both where vLLM's clamp turns a NaN into the largest fp8 code: a NaN stays
// one, and zeros stay 0 under a scale of 0.
#pragma once
#include <cfloat>
#include <string_view>

#include "src/core/index_vector.h"
#include "src/core/tensor_view.h"

namespace intarsia {

// What an integer that is added to a zero point counts as at most, so that no sum overflows.
inline constexpr int32_t kLargestTerm = 1 << 29;

inline constexpr float kLargestF8E4M3 = 448.0f, kLargestI8 = 127.0f;

// 1 / scale, but no infinity, which times zero would be NaN.
[[gnu::always_inline]] INTARSIA_HOST_DEVICE inline float Reciprocal(float scale) {
  const float r = 1.0f / scale;
  return r > FLT_MAX ? FLT_MAX : r;
}

// What a number goes through before it is rounded to a code.
struct Scaling {
  float factor;
  bool divide;

  template <class X>  // float or VecF
  [[gnu::always_inline]] INTARSIA_HOST_DEVICE X operator()(X x) const {
    return divide ? x / factor : x * factor;
  }
};

// By a scale that is given: fp8 takes the reciprocal, int8 a division.
[[gnu::always_inline]] INTARSIA_HOST_DEVICE inline Scaling GivenScale(float scale, bool divide) {
  return {divide ? scale : Reciprocal(scale), divide};
}

// 2^ceil(log2 x) for x > 0, with the logarithm in f32 as in vLLM: what is above a power of two by a
// few ulp counts as it. An infinity stays one.
[[gnu::always_inline]] INTARSIA_HOST_DEVICE inline float PowerOfTwoFrom(float x) {
#ifdef __CUDA_ARCH__
  return scalbnf(1.0f, static_cast<int>(ceilf(log2f(x))));
#else
  return __builtin_exp2f(__builtin_ceilf(static_cast<float>(__builtin_log2(x))));
#endif
}

// By the row's own scale, from the largest absolute value in it, NaN left out:
//   a = min(max(largest absolute value, least_absmax), *upper), scale = max(a / largest,
//   least_scale), rounded up to a power of two if so wanted
struct RowRule {
  enum class Apply { kDivide, kReciprocal /* x * (1 / scale) */, kLargest /* x * (largest / a) */ };

  float largest = kLargestF8E4M3;  // code
  Apply apply = Apply::kDivide;
  float least_absmax = 0.0f, least_scale = 0.0f;
  const float* upper = nullptr;  // [1]; null: none
  bool power_of_two = false;

  struct Scaled {
    float scale;
    Scaling scaling;
  };
  [[gnu::always_inline]] INTARSIA_HOST_DEVICE Scaled Of(float absmax) const {
    float a = absmax > least_absmax ? absmax : least_absmax;
    if (upper && *upper < a) a = *upper;
    const float ratio = a / largest;
    float scale = ratio > least_scale ? ratio : least_scale;
    if (power_of_two) scale = PowerOfTwoFrom(scale);
    if (apply == Apply::kDivide) return {scale, {scale, true}};
    if (apply == Apply::kReciprocal) return {scale, {Reciprocal(scale), false}};
    return {scale, {a == 0.0f ? 0.0f : largest / a, false}};
  }
};

// A scale_ub is [1].
[[gnu::always_inline]] inline RowRule TokenF8Rule(const Optional& scale_ub) {
  return {.least_scale = 1.0f / (kLargestF8E4M3 * 512.0f),
          .upper = scale_ub ? scale_ub->as<const float>() : nullptr};
}

// Behind a norm: codes are "f8e4m3fn" or "i8".
[[gnu::always_inline]] inline RowRule NormedRule(std::string_view codes, const Optional& scale_ub) {
  RowRule rule = TokenF8Rule(scale_ub);
  if (codes == "i8")
    rule = {.largest = kLargestI8,
            .apply = RowRule::Apply::kReciprocal,
            .least_scale = FLT_EPSILON,
            .upper = rule.upper};
  return rule;
}

}  // namespace intarsia
