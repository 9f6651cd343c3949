// The two matrix products of attention, a block of registers at a time. For *_cpu.cc files only.
#pragma once
#include <cstdint>

#include "src/core/cpu/simd.h"

namespace intarsia::attention {
namespace {

// A matrix of f32 by strides.
struct Strided {
  const float* data;
  int64_t row, column;
};

// sums[i][j] += sum_n a[i, n] * b[n, j], j in registers; rows of b are b_row elements apart.
template <int kRows, int kColumns, class T>
[[gnu::always_inline]] inline void Multiply(Strided a, const T* b, int64_t b_row, int64_t count,
                                            VecF (&sums)[kRows][kColumns]) {
  for (int64_t n = 0; n < count; ++n, b += b_row) {
    VecF b_n[kColumns];
#pragma GCC unroll 16
    for (int j = 0; j < kColumns; ++j) b_n[j] = Load(b + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const VecF a_in = Splat(a.data[i * a.row + n * a.column]);
#pragma GCC unroll 16
      for (int j = 0; j < kColumns; ++j) sums[i][j] += a_in * b_n[j];
    }
  }
}

// The kLanes dot products of kRows rows of a, a_row elements apart, and kLanes / kRows rows of b;
// of `count` elements, a multiple of kLanes. Lane i is row i % kRows of a times row i / kRows of b.
template <int kRows, class T>
[[gnu::always_inline]] inline VecF DotProducts(const float* a, int64_t a_row,
                                               const T* const (&b)[kLanes / kRows], int64_t count) {
  VecF sums[kLanes] = {};
  for (int64_t n = 0; n < count; n += kLanes) {
    VecF b_n[kLanes / kRows];
#pragma GCC unroll 16
    for (int j = 0; j < kLanes / kRows; ++j) b_n[j] = Load(b[j] + n);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const VecF a_n = Load(a + i * a_row + n);
#pragma GCC unroll 16
      for (int j = 0; j < kLanes / kRows; ++j) sums[j * kRows + i] += a_n * b_n[j];
    }
  }
  return SumEach(sums);
}

// Calls fn.operator()<size>(first) for blocks that cover [0, count): of kSize, then half of it
// ... 1.
template <int kSize, class Fn>
[[gnu::always_inline]] inline void ForBlocks(int64_t count, Fn fn, int64_t first = 0) {
  for (; first + kSize <= count; first += kSize) fn.template operator()<kSize>(first);
  if constexpr (kSize > 1) {
    if (first < count) ForBlocks<kSize / 2>(count, fn, first);
  }
}

}  // namespace
}  // namespace intarsia::attention
