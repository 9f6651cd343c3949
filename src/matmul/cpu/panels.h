// Products with weights that lie row by row, [n, k]: a few rows of x are packed into panels. A
// panel of `width` rows is what a register (two, for the widest) multiplies at once: f32 [k /
// depth, width, depth], where depth is how many neighbors along k a register has room for beside
// so many rows. So a few rows fill registers, too, each weight is loaded once for the whole panel,
// and no sum goes across lanes before the end. For *_cpu.cc files only.
#pragma once
#include <algorithm>
#include <cstdint>

#include "src/core/cpu/simd.h"

namespace intarsia::matmul {
namespace {

constexpr int kWeightRows = 8;       // at a time
constexpr int kWidest = 2 * kLanes;  // panel
// Of a panel and of kWeightRows rows of w at a time: caches hold them.
constexpr int64_t kPanelSum = 512;
// The same of a panel of one row.
constexpr int64_t kRowSum = 4096;

// How a register holds a panel: neighbors along k for each row, and registers for all rows.
template <int kWidth>
constexpr int kDepth = kWidth < kLanes ? kLanes / kWidth : 1;
template <int kWidth>
constexpr int kVecs = kWidth < kLanes ? 1 : kWidth / kLanes;

// fn.operator()<width>(first row, rows) for the panels of some rows: the widest ones, then ever
// narrower ones; one is as wide as the rows that are left, or up to a third wider.
template <int kWidth = kWidest, class Fn>
[[gnu::always_inline]] constexpr void ForPanels(int64_t rows, Fn fn, int64_t first = 0) {
  if constexpr (kWidth == kWidest)
    for (; first + kWidth <= rows; first += kWidth) fn.template operator()<kWidth>(first, kWidth);
  if (4 * (rows - first) >= 3 * kWidth) {
    fn.template operator()<kWidth>(first, std::min<int64_t>(kWidth, rows - first));
    first += kWidth;
  }
  if constexpr (kWidth > 1) {
    if (first < rows) ForPanels<kWidth / 2>(rows, fn, first);
  }
}

// load(i, q, lanes): elements q ... q + lanes - 1 of row i, of k; the other lanes are 0.
template <int kWidth, class LoadFn>
void PackPanel(LoadFn load, int64_t k, float* panel) {
  constexpr int kK = kDepth<kWidth>;
  for (int64_t q = 0; q < k; q += kLanes) {
    const int lanes = static_cast<int>(std::min<int64_t>(kLanes, k - q));
    for (int i = 0; i < kWidth; ++i) {
      float part[kLanes];
      Store(part, load(i, q, lanes));
      for (int j = 0; j < kLanes; j += kK)
        std::memcpy(panel + (q + j) * kWidth + i * kK, part + j, kK * sizeof(float));
    }
  }
}

// Fetches a block of rows ahead of time, in as many steps as the block before it is multiplied in.
struct Ahead {
  const char* row;
  int64_t row_bytes, bytes, step;  // of w, of the block's part of a row, at a time
  int64_t at = 0;

  [[gnu::always_inline]] void Fetch() {
    for (int64_t i = 0; i < step; i += 64) __builtin_prefetch(row + at + i, 0, 2);
    at += step;
    if (at >= bytes) at -= bytes, row += row_bytes;
  }
};

// A register of weights: kCount of f32 over and over, or of 16 bits a register full, widened.
template <int kCount>
[[gnu::always_inline]] inline VecF Weights(const float* w) {
  return Repeat<kCount>(w);
}
template <int kCount, class W>
[[gnu::always_inline]] inline VecF Weights(const W* w) {
  static_assert(kCount == kLanes);
  return Load(w);
}

// sums[r] += panel times row r of w, over `count` of k, a multiple of kLanes.
template <int kWidth, class W>
[[gnu::noinline]] void MultiplyPanel(const float* panel, const W* const (&w)[kWeightRows],
                                     int64_t count, Ahead ahead, float* sums) {
  constexpr int kV = kVecs<kWidth>, kK = kDepth<kWidth>;
  constexpr int kAtOnce = std::min(kWeightRows, kAccumulators / kV);
  for (int first = 0; first < kWeightRows; first += kAtOnce, sums += kAtOnce * kV * kLanes) {
    VecF s[kAtOnce][kV];
#pragma GCC unroll 16
    for (int i = 0; i < kAtOnce * kV; ++i) s[i / kV][i % kV] = Load(sums + i * kLanes);
    for (int64_t q = 0; q < count; q += kLanes) {
      ahead.Fetch();
#pragma GCC unroll 4
      for (int j = 0; j < kLanes; j += kK) {
        VecF x[kV];
#pragma GCC unroll 16
        for (int v = 0; v < kV; ++v) x[v] = Load(panel + (q + j) * kWidth + v * kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < kAtOnce; ++r) {
          const VecF w_in = Weights<kK>(w[first + r] + q + j);
#pragma GCC unroll 16
          for (int v = 0; v < kV; ++v) s[r][v] += w_in * x[v];
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kAtOnce * kV; ++i) Store(sums + i * kLanes, s[i / kV][i % kV]);
  }
}

// out[i, 0 .. columns) = sums + bias for the rows of a panel; out's rows are n apart.
template <int kWidth, class T, class Out>
void Finish(const float* sums, int64_t rows, const T* bias, int64_t columns, Out* out, int64_t n) {
  constexpr int kV = kVecs<kWidth>, kK = kDepth<kWidth>, kInVec = kLanes / kK;
  ForLanes(columns, [&](int64_t j, int lanes) {
    const VecF shift = bias ? LoadN(bias + j, lanes) : VecF{};
    for (int v = 0; v < kV; ++v) {
      float parts[kInVec][kLanes];  // [kK columns][rows, kK columns]
      for (int g = 0; g < kInVec; ++g) {
        VecF of_column[kK];
        for (int i = 0; i < kK; ++i)
          of_column[i] = Load(sums + ((j + g * kK + i) * kV + v) * kLanes);
        Store(parts[g], SumEach(of_column));
      }
      const int64_t first = v * kLanes;
      for (int64_t i = 0; i < std::min<int64_t>(kInVec, rows - first); ++i) {
        float row[kLanes];
        for (int g = 0; g < kInVec; ++g)
          std::memcpy(row + g * kK, parts[g] + i * kK, kK * sizeof(float));
        const VecF y = Load(row);
        StoreN(out + (first + i) * n + j, bias ? y + shift : y, lanes);
      }
    }
  });
}

}  // namespace
}  // namespace intarsia::matmul
