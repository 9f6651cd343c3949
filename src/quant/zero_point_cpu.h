// Codes of int8 around a zero point, on the CPU. For <op>_cpu.cc files only, like simd.h.
#pragma once
#include <algorithm>

#include "src/core/cpu/simd.h"
#include "src/quant/scaling.h"

namespace intarsia {
namespace {

// To the nearest integer, of ties to the even one, within +-kLargestTerm; NaN becomes 0.
[[gnu::always_inline]] inline VecI RoundToInteger(VecF x) {
  // From 2^23 on there are no fractions; below, adding 2^23 leaves none.
  const VecF size = Abs(x), magic = Splat(8388608.0f);
  const VecF rounded = size < 8388608.0f ? (size + magic) - magic : size;
  const VecF most = Splat(static_cast<float>(kLargestTerm));
  const VecI integer = __builtin_convertvector(rounded < most ? rounded : most, VecI);
  return x == x ? (x < 0.0f ? -integer : integer) : VecI{};
}

// round(scaled) + azp as f32, which a code of int8 then takes the nearest of.
[[gnu::always_inline]] inline VecF Shifted(VecF scaled, int32_t azp) {
  const VecI sum = RoundToInteger(scaled) + std::clamp(azp, -kLargestTerm, kLargestTerm);
  return __builtin_convertvector(sum, VecF);
}

}  // namespace
}  // namespace intarsia
