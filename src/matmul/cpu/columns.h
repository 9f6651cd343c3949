// Products with weights that lie column by column, [k, n]: a register holds neighboring columns,
// and an element of x meets all of them. Rows of w are read as they lie, a few of them at a time
// for all columns of a tile, since memory gives long runs fastest. For *_cpu.cc files only.
#pragma once
#include <algorithm>
#include <cstdint>

#include "src/core/cpu/simd.h"

namespace intarsia::matmul {
namespace {

// A matrix of f32 by strides.
struct Strided {
  const float* data;
  int64_t row, column;

  [[gnu::always_inline]] float At(int64_t i, int64_t q) const { return data[i * row + q * column]; }
};

// sums[i][j] += sum_q a(i, q) w[q, j] for kRows rows and kVecs registers of columns, the last of
// which has `lanes`.
template <int kRows, int kVecs, class T>
[[gnu::always_inline]] inline void MultiplyBlock(Strided a, const T* w, int64_t w_row,
                                                 int64_t count, int lanes, float* sums,
                                                 int64_t sums_row) {
  VecF s[kRows][kVecs];
#pragma GCC unroll 16
  for (int i = 0; i < kRows * kVecs; ++i)
    s[i / kVecs][i % kVecs] = Load(sums + i / kVecs * sums_row + i % kVecs * kLanes);
  for (int64_t q = 0; q < count; ++q, w += w_row) {
    // The rows that come next: memory's own prefetching follows no run that jumps from row to row.
    VecF w_q[kVecs];
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) __builtin_prefetch(w + count * w_row + v * kLanes, 0, 2);
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v)
      w_q[v] = v + 1 < kVecs ? Load(w + v * kLanes) : LoadN(w + v * kLanes, lanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const VecF a_in = Splat(a.At(i, q));
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) s[i][v] += a_in * w_q[v];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows * kVecs; ++i)
    Store(sums + i / kVecs * sums_row + i % kVecs * kLanes, s[i / kVecs][i % kVecs]);
}

// The same for all columns. Rows of sums have room for whole registers.
template <int kRows, class T>
[[gnu::noinline]] void MultiplyRows(Strided a, const T* w, int64_t w_row, int64_t count,
                                    int64_t columns, float* sums, int64_t sums_row) {
  constexpr int kVecs = kAccumulators / kRows;
  int64_t j = 0;
  for (; j + kVecs * kLanes <= columns; j += kVecs * kLanes)
    MultiplyBlock<kRows, kVecs>(a, w + j, w_row, count, kLanes, sums + j, sums_row);
  ForLanes(columns - j, [&](int64_t i, int lanes) {
    MultiplyBlock<kRows, 1>(a, w + j + i, w_row, count, lanes, sums + j + i, sums_row);
  });
}

// sums[rows, columns] += a w, rows as many at a time as registers hold sums of.
template <int kRows = kAccumulators / 2, class T>
void MultiplyColumns(Strided a, int64_t rows, const T* w, int64_t w_row, int64_t count,
                     int64_t columns, float* sums, int64_t sums_row) {
  while (rows >= kRows) {
    MultiplyRows<kRows>(a, w, w_row, count, columns, sums, sums_row);
    rows -= kRows;
    a.data += kRows * a.row;
    sums += kRows * sums_row;
  }
  if constexpr (kRows > 1) {
    if (rows > 0) MultiplyColumns<kRows / 2>(a, rows, w, w_row, count, columns, sums, sums_row);
  }
}

}  // namespace
}  // namespace intarsia::matmul
