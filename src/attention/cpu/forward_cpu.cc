#include <atomic>
#include <cmath>

#include "src/attention/cpu/forward.h"
#include "src/attention/cpu/keys.h"
#include "src/attention/cpu/panel.h"
#include "src/attention/cpu/rows.h"
#include "src/core/cpu/simd_8bit.h"
#include "src/core/dispatch.h"

namespace intarsia {
namespace attention {
namespace {

void StorePartial(const CpuWork& work, int64_t head, int64_t partial_row, RowSums sums) {
  float* partial = work.partial(head, partial_row);
  std::copy(sums.out, sums.out + work.padded_dv, partial);
  partial[work.padded_dv] = sums.max;
  partial[work.padded_dv + 1] = sums.sum;
}

RowSums LoadPartial(const CpuWork& work, int64_t head, int64_t partial_row) {
  const float* partial = work.partial(head, partial_row);
  return {.out = partial, .max = partial[work.padded_dv], .sum = partial[work.padded_dv + 1]};
}

// T: the elements of K and V.
template <class T, int kWidth>
void RunTile(const CpuWork& work, const CpuTile& tile, int64_t head, float* scratch) {
  constexpr int64_t kMaxPanels = kWidth < 2 * kLanes ? 1 : kTileRows / kWidth;
  float* k_tile = scratch;
  float* v_tile = k_tile + kTileKeys * work.padded_d;
  float* scores = v_tile + kTileKeys * work.padded_dv;
  float* rows = scores + Panel<kWidth>::kScoreFloats;

  Panel<kWidth> panels[kMaxPanels];
  int64_t num_panels = 0;
  for (int64_t row = 0; row < tile.num_rows;
       row += kWidth, rows += Panel<kWidth>::MemoryFloats(work))
    panels[num_panels++].Start(work, tile.sequence, head, tile.row + row,
                               std::min<int64_t>(kWidth, tile.num_rows - row), rows);

  const CacheView& cache = work.params.cache;
  const bool whole_registers =
      cache.head_dim == work.padded_d && cache.v_head_dim == work.padded_dv;
  if (!whole_registers) std::fill(k_tile, scores, 0.0f);
  KeyWalk<T> walk(work, tile, head);
  // With few rows each element is used so rarely that a copy would cost more than it saves.
  while (walk.run().count > 0) {
    if (kWidth < kLanes && whole_registers) {
      KeyBlock<T> keys = walk.run();
      keys.count = std::min(keys.count, kStreamKeys);
      walk.Advance(keys.count);
      walk.Prefetch();
      if constexpr (kWidth < kLanes) panels[0].Attend(keys, scores);
    } else {
      const KeyBlock<float> keys = Gather(walk, work, k_tile, v_tile);
      for (int64_t i = 0; i < num_panels; ++i) panels[i].Attend(keys, scores);
    }
  }

  for (int64_t i = 0; i < tile.num_rows; ++i) {
    const RowSums sums = panels[i / kWidth].sums(i % kWidth);
    if (tile.partial_row < 0)
      StoreRow(work, tile.sequence, head, tile.row + i, sums);
    else
      StorePartial(work, head, tile.partial_row + i, sums);
  }
}

// The narrowest panel that has room for the rows; the widest takes them in turns.
template <class T, int kWidth = 1>
void DispatchTile(const CpuWork& work, const CpuTile& tile, int64_t head, float* scratch) {
  if constexpr (kWidth < 2 * kLanes) {
    if (tile.num_rows > kWidth) return DispatchTile<T, 2 * kWidth>(work, tile, head, scratch);
  }
  RunTile<T, kWidth>(work, tile, head, scratch);
}

// out = sum_i e^(max_i - max) out_i over the splits, and the sums likewise.
void RunMerge(const CpuWork& work, const CpuMerge& merge, int64_t head, float* merged) {
  for (int64_t row = 0; row < merge.tile.num_rows; ++row) {
    const auto partial = [&](int64_t split) {
      return LoadPartial(work, head, merge.tile.partial_row + split * merge.tile.num_rows + row);
    };
    RowSums sums{.out = merged, .max = -kInfinity, .sum = 0};
    for (int64_t split = 0; split < merge.splits; ++split)
      sums.max = std::max(sums.max, partial(split).max);
    std::fill(merged, merged + work.padded_dv, 0.0f);
    for (int64_t split = 0; split < merge.splits; ++split) {
      const RowSums from = partial(split);
      const float factor = sums.max == -kInfinity ? 0 : std::exp(from.max - sums.max);
      sums.sum += factor * from.sum;
      for (int64_t i = 0; i < work.padded_dv; i += kLanes)
        Store(merged + i, Load(merged + i) + Load(from.out + i) * factor);
    }
    StoreRow(work, merge.tile.sequence, head, merge.tile.row + row, sums);
  }
}

// fn(item, scratch) for every item in [0, count). A worker takes one after the other; its number
// says which scratch memory is its own.
template <class Fn>
void ForItems(const CpuWork& work, const CpuContext& context, int64_t count, Fn fn) {
  std::atomic<int64_t> next{0};
  context.ParallelFor(std::min(work.num_workers, count), [&](int64_t worker) {
    float* scratch = work.scratch + worker * work.scratch_floats;
    for (int64_t item; (item = next.fetch_add(1)) < count;) fn(item, scratch);
  });
}

// T: the elements of K and V.
template <class T>
Status RunAll(const CpuWork& work, const CpuContext& context) {
  const int64_t hk = work.params.num_kv_heads();
  ForItems(work, context, work.num_tiles * hk, [&](int64_t item, float* scratch) {
    DispatchTile<T>(work, work.tiles[item / hk], item % hk, scratch);
  });
  ForItems(work, context, work.num_merges * hk, [&](int64_t item, float* scratch) {
    RunMerge(work, work.merges[item / hk], item % hk, scratch);
  });
  return {};
}

}  // namespace
}  // namespace attention

template <>
Status RunCpu<kIsa>(const attention::CpuWork& work, const CpuContext& context) {
  return DispatchDType<kF32, kF16, kBF16, kF8E4M3, kF8E5M2>(
      "attention: K and V", work.params.cache.dtype,
      [&]<DType kType>() { return attention::RunAll<CpuT<kType>>(work, context); });
}

}  // namespace intarsia
