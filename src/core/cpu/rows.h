// Rows of a dense [..., n] array shared among threads. For <op>_cpu.cc files only, like simd.h.
#pragma once
#include <algorithm>
#include <cstdint>

#include "src/core/context.h"
#include "src/core/round.h"
#include "src/core/tensor_view.h"

namespace intarsia {
namespace {

inline constexpr int64_t kTileElements = 16384;  // enough work to be worth a thread's wake-up

// fn(row) for each row; neighboring rows stay on one thread.
template <class Fn>
void ForRows(const CpuContext& context, int64_t rows, int64_t row_elements, Fn fn) {
  const int64_t rows_per_tile = kTileElements / std::max<int64_t>(row_elements, 1) + 1;
  context.ParallelFor(CeilDiv(rows, rows_per_tile), [&](int64_t tile) {
    const int64_t end = std::min(rows, (tile + 1) * rows_per_tile);
    for (int64_t row = tile * rows_per_tile; row < end; ++row) fn(row);
  });
}

// How many rows of n elements `x` has.
[[gnu::always_inline]] inline int64_t Rows(const TensorView& x, int64_t n) {
  return n == 0 ? 0 : x.size() / n;
}

}  // namespace
}  // namespace intarsia
