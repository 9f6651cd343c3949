#include "src/ops/linear/linear_cpu.h"

#include <algorithm>

#include "src/core/cpu/rows.h"
#include "src/core/cpu/simd.h"
#include "src/core/dispatch.h"
#include "src/core/round.h"

namespace intarsia {
namespace {

constexpr int kRows = 8;             // of w at a time
constexpr int kWidest = 2 * kLanes;  // panel
constexpr int64_t kBlockK = 512;  // of a panel and of kRows rows of w at a time: caches hold them
constexpr int64_t kSumFloats = 8192;  // of a tile

// How a register holds a panel: neighbours along k for each row, and registers for all rows.
template <int kWidth>
constexpr int kDepth = kWidth < kLanes ? kLanes / kWidth : 1;
template <int kWidth>
constexpr int kVecs = kWidth < kLanes ? 1 : kWidth / kLanes;

// fn.operator()<width>(first row, rows) for the panels of some rows: the widest ones, then ever
// narrower ones; one is as wide as the rows that are left, or up to a third wider.
template <int kWidth = kWidest, class Fn>
[[gnu::always_inline]] inline void ForPanels(int64_t rows, Fn fn, int64_t first = 0) {
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

template <int kWidth, class T>
void Pack(const T* x, int64_t rows, int64_t k, float* panel) {
  constexpr int kK = kDepth<kWidth>;
  for (int64_t q = 0; q < k; q += kLanes) {
    const int lanes = static_cast<int>(std::min<int64_t>(kLanes, k - q));
    for (int i = 0; i < kWidth; ++i) {
      float row[kLanes];
      Store(row, i < rows ? LoadN(x + i * k + q, lanes) : VecF{});
      for (int j = 0; j < kLanes; j += kK)
        std::memcpy(panel + (q + j) * kWidth + i * kK, row + j, kK * sizeof(float));
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

// sums[r] += panel times row r of w, over `count` of k, a multiple of kLanes.
template <int kWidth>
[[gnu::noinline]] void MultiplyPanel(const float* panel, const float* const (&w)[kRows],
                                     int64_t count, Ahead ahead, float* sums) {
  constexpr int kV = kVecs<kWidth>, kK = kDepth<kWidth>;
  constexpr int kAtOnce = std::min(kRows, kAccumulators / kV);
  for (int first = 0; first < kRows; first += kAtOnce, sums += kAtOnce * kV * kLanes) {
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
          const VecF w_in = Repeat<kK>(w[first + r] + q + j);
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

// Rows [0, rows) of `packed` and `out` times rows [0, columns) of w.
template <class T, class Out>
void RunTile(const LinearWork& work, const float* packed, int64_t rows, const T* w, int64_t columns,
             const T* bias, Out* out) {
  const int64_t padded = RoundUp<int64_t>(columns, kLanes);
  const int64_t k = work.k;
  alignas(64) float sums[kSumFloats];
  alignas(64) float wide[kRows * kBlockK];
  int64_t used = 0;
  ForPanels(rows, [&]<int kWidth>(int64_t, int64_t) { used += padded * kVecs<kWidth> * kLanes; });
  std::fill(sums, sums + used, 0.0f);
  for (int64_t q = 0; q < k; q += kBlockK) {
    const int64_t count = std::min(kBlockK, k - q);
    const int64_t padded_count = RoundUp<int64_t>(count, kLanes);
    for (int64_t j = 0; j < padded; j += kRows) {
      const float* w_rows[kRows];
      const bool as_it_is = std::is_same_v<T, float> && count == padded_count;
      for (int64_t r = 0; r < kRows; ++r) {
        const T* row = w + std::min(j + r, columns - 1) * k + q;
        if constexpr (std::is_same_v<T, float>) w_rows[r] = row;
        if (as_it_is) continue;
        w_rows[r] = wide + r * kBlockK;
        ForLanes(count, [&](int64_t i, int lanes) {
          Store(wide + r * kBlockK + i, LoadN(row + i, lanes));
        });
      }
      const Ahead ahead{reinterpret_cast<const char*>(w + (j + kRows) * k + q),
                        k * static_cast<int64_t>(sizeof(T)),
                        count * static_cast<int64_t>(sizeof(T)),
                        kRows * kLanes * static_cast<int64_t>(sizeof(T))};
      float* panel_sums = sums;
      ForPanels(rows, [&]<int kWidth>(int64_t first, int64_t) {
        MultiplyPanel<kWidth>(packed + first * work.padded_k + q * kWidth, w_rows, padded_count,
                              ahead, panel_sums + j * kVecs<kWidth> * kLanes);
        panel_sums += padded * kVecs<kWidth> * kLanes;
      });
    }
  }
  const float* panel_sums = sums;
  ForPanels(rows, [&]<int kWidth>(int64_t first, int64_t panel_rows) {
    Finish<kWidth>(panel_sums, panel_rows, bias, columns, out + first * work.n, work.n);
    panel_sums += padded * kVecs<kWidth> * kLanes;
  });
}

// How many rows of w a tile takes: few enough that all threads are busy and the sums have room, and
// enough to be worth a thread's wake-up.
int64_t TileColumns(const LinearWork& work, int64_t rows, int num_threads) {
  int64_t floats = 0;
  ForPanels(rows, [&]<int kWidth>(int64_t, int64_t) { floats += kVecs<kWidth> * kLanes; });
  const int64_t shared = work.n / (4 * num_threads);
  const int64_t worth = kTileElements / std::max<int64_t>(work.k, 1);
  const int64_t room = kSumFloats / floats / kAlignFloats * kAlignFloats;
  const int64_t wanted = std::max({shared, worth, int64_t{1}});
  return std::min(RoundUp(wanted, kAlignFloats), room);
}

template <class T, class Out>
void RunRows(const LinearWork& work, const CpuContext& context, int64_t first, int64_t rows) {
  const T* x = work.op.x.as<const T>() + first * work.k;
  const T* w = work.op.w.as<const T>();
  const T* bias = work.op.bias ? work.op.bias->as<const T>() : nullptr;
  Out* out = work.op.out.as<Out>() + first * work.n;
  const int64_t blocks = CeilDiv(rows, kLinearBlockRows);
  const auto rows_of = [&](int64_t block) {
    return std::min(kLinearBlockRows, rows - block * kLinearBlockRows);
  };
  context.ParallelFor(blocks, [&](int64_t block) {
    const int64_t start = block * kLinearBlockRows;
    ForPanels(rows_of(block), [&]<int kWidth>(int64_t row, int64_t panel_rows) {
      Pack<kWidth>(x + (start + row) * work.k, panel_rows, work.k,
                   work.packed + (start + row) * work.padded_k);
    });
  });
  const int64_t columns =
      TileColumns(work, std::min(rows, kLinearBlockRows), context.num_threads());
  const int64_t tiles = CeilDiv(work.n, columns);
  context.ParallelFor(tiles * blocks, [&](int64_t i) {
    const int64_t block = i % blocks, column = i / blocks * columns;
    const int64_t start = block * kLinearBlockRows;
    RunTile(work, work.packed + start * work.padded_k, rows_of(block), w + column * work.k,
            std::min(columns, work.n - column), bias ? bias + column : nullptr,
            out + start * work.n + column);
  });
}

Status RunWork(const LinearWork& work, const CpuContext& context) {
  return DispatchDType<kF32, kF16, kBF16>("x", work.op.x.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    for (int64_t first = 0; first < work.m; first += work.packed_rows) {
      const int64_t rows = std::min(work.packed_rows, work.m - first);
      if (work.op.out.dtype == kType)
        RunRows<T, T>(work, context, first, rows);
      else
        RunRows<T, float>(work, context, first, rows);
    }
    return {};
  });
}

}  // namespace

template <>
Status RunCpu<kIsa>(const Linear& op, const CpuContext& context) {
  return RunPlanned(op, context, &RunWork);
}

}  // namespace intarsia
