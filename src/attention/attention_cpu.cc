#include "src/attention/attention_cpu.h"

#include <atomic>
#include <cmath>

#include "src/attention/panel_cpu.h"
#include "src/core/cpu/simd.h"

namespace intarsia {
namespace attention {
namespace {

// Keys taken at a time where they lie, and asked for ahead: K and V of so many fit in the L1 cache.
constexpr int64_t kStreamKeys = 32;

// Walks the keys [begin, end) of one sequence and KV head run by run: the keys of a run lie in
// neighbouring slots of one page. Pages that do not exist are passed over.
template <class T>
class KeyWalk {
 public:
  KeyWalk(const CpuWork& work, const CpuTile& tile, int64_t head)
      : params_(work.params), sequence_(tile.sequence), head_(head), end_(tile.key_end) {
    FindRun(tile.key_begin);
  }

  // Empty at the end.
  const KeyBlock<T>& run() const { return run_; }

  // Asks for the first keys of the run: K into the L1 cache, V, which comes later, into L2. The
  // hardware follows a stream to the end of a 4 KiB page at most, and neighbouring keys of a head
  // are often that far apart. Inlined by force: GCC drops calls of a function that does nothing
  // else.
  [[gnu::always_inline]] void Prefetch() const {
    constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
    for (int64_t j = 0; j < std::min(run_.count, kStreamKeys); ++j)
      for (int64_t i = 0; i < params_.head_dim; i += kLine) {
        __builtin_prefetch(run_.k + j * run_.stride + i, 0, 3);
        __builtin_prefetch(run_.v + j * run_.stride + i, 0, 2);
      }
  }

  // Leaves the first `count` keys of the run behind.
  void Advance(int64_t count) {
    if (count == run_.count) return FindRun(run_.first + count);
    run_.first += count;
    run_.count -= count;
    run_.k += count * run_.stride;
    run_.v += count * run_.stride;
  }

 private:
  void FindRun(int64_t key) {
    const CacheView& cache = params_.cache;
    run_ = {.first = end_, .count = 0, .k = nullptr, .v = nullptr, .stride = cache.k_strides.slot};
    for (int64_t count; key < end_; key += count) {
      const int64_t slot = sequence_.k_begin + key;
      int64_t page = slot / cache.page_size;
      const int64_t slot_in_page = slot % cache.page_size;
      count = std::min(end_ - key, cache.page_size - slot_in_page);
      if (params_.paged)
        page = params_.page_table.At(sequence_.index * params_.page_table_stride + page);
      if (page < 0 || page >= cache.num_pages) continue;
      run_.first = key;
      run_.count = count;
      run_.k = static_cast<const T*>(cache.k) + cache.k_strides.At(0, page, slot_in_page, head_);
      run_.v = static_cast<const T*>(cache.v) + cache.v_strides.At(0, page, slot_in_page, head_);
      return;
    }
  }

  const Params& params_;
  const CpuSequence& sequence_;
  int64_t head_, end_;
  KeyBlock<T> run_;
};

// The next kTileKeys keys as f32; fewer before a page that does not exist and at the end. Rows are
// padded_d apart, and what lies between d and padded_d stays as it is.
template <class T>
KeyBlock<float> Gather(KeyWalk<T>& walk, const CpuWork& work, float* k_tile, float* v_tile) {
  KeyBlock<float> tile{
      .first = walk.run().first, .count = 0, .k = k_tile, .v = v_tile, .stride = work.padded_d};
  while (walk.run().count > 0 && walk.run().first == tile.first + tile.count &&
         tile.count < kTileKeys) {
    const KeyBlock<T>& run = walk.run();
    const int64_t count = std::min(run.count, kTileKeys - tile.count);
    for (int64_t j = 0; j < count; ++j, ++tile.count) {
      float* k = k_tile + tile.count * tile.stride;
      float* v = v_tile + tile.count * tile.stride;
      ForLanes(work.params.head_dim, [&](int64_t i, int lanes) {
        Store(k + i, LoadN(run.k + j * run.stride + i, lanes));  // 0 in the lanes from d on
        Store(v + i, LoadN(run.v + j * run.stride + i, lanes));
      });
    }
    walk.Advance(count);
  }
  return tile;
}

// Row `row` of the sequence, out / sum, and its lse.
template <class T>
void StoreRow(const CpuWork& work, const CpuSequence& sequence, int64_t head, int64_t row,
              const float* out, float max, float sum) {
  const Params& params = work.params;
  const int64_t token = sequence.q_begin + row / work.group;
  const int64_t query_head = head * work.group + row % work.group;
  T* stored =
      static_cast<T*>(params.out) + (token * params.num_heads + query_head) * params.head_dim;
  const float factor = sum == 0 ? 0 : 1 / sum;
  ForLanes(params.head_dim,
           [&](int64_t i, int lanes) { StoreN(stored + i, Load(out + i) * factor, lanes); });
  if (params.lse)
    params.lse[query_head * params.num_tokens + token] =
        sum == 0 ? -kInfinity : max + std::log(sum);
}

void StorePartial(const CpuWork& work, int64_t head, int64_t partial_row, const float* out,
                  float max, float sum) {
  float* partial = work.partial(head, partial_row);
  std::copy(out, out + work.padded_d, partial);
  partial[work.padded_d] = max;
  partial[work.padded_d + 1] = sum;
}

template <class T, int kWidth>
void RunTile(const CpuWork& work, const CpuTile& tile, int64_t head, float* scratch) {
  constexpr int64_t kMaxPanels = kWidth < 2 * kLanes ? 1 : kTileRows / kWidth;
  const int64_t tile_floats = kTileKeys * work.padded_d;
  float* k_tile = scratch;
  float* v_tile = k_tile + tile_floats;
  float* scores = v_tile + tile_floats;
  float* rows = scores + Panel<kWidth>::kScoreFloats;

  Panel<kWidth> panels[kMaxPanels];
  int64_t num_panels = 0;
  for (int64_t row = 0; row < tile.num_rows; row += kWidth, rows += 2 * kWidth * work.padded_d)
    panels[num_panels++].template Start<T>(work, tile.sequence, head, tile.row + row,
                                           std::min<int64_t>(kWidth, tile.num_rows - row), rows);

  const bool whole_registers = work.params.head_dim == work.padded_d;
  if (!whole_registers) std::fill(k_tile, k_tile + 2 * tile_floats, 0.0f);
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
    const Panel<kWidth>& panel = panels[i / kWidth];
    const int64_t row = i % kWidth;
    if (tile.partial_row < 0)
      StoreRow<T>(work, tile.sequence, head, tile.row + i, panel.out(row), panel.max(row),
                  panel.sum(row));
    else
      StorePartial(work, head, tile.partial_row + i, panel.out(row), panel.max(row),
                   panel.sum(row));
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
template <class T>
void RunMerge(const CpuWork& work, const CpuMerge& merge, int64_t head, float* merged) {
  const int64_t d = work.padded_d;
  for (int64_t row = 0; row < merge.tile.num_rows; ++row) {
    const auto partial = [&](int64_t split) {
      return work.partial(head, merge.tile.partial_row + split * merge.tile.num_rows + row);
    };
    float max = -kInfinity, sum = 0;
    for (int64_t split = 0; split < merge.splits; ++split) max = std::max(max, partial(split)[d]);
    std::fill(merged, merged + d, 0.0f);
    for (int64_t split = 0; split < merge.splits; ++split) {
      const float* from = partial(split);
      const float factor = max == -kInfinity ? 0 : std::exp(from[d] - max);
      sum += factor * from[d + 1];
      for (int64_t i = 0; i < d; i += kLanes)
        Store(merged + i, Load(merged + i) + Load(from + i) * factor);
    }
    StoreRow<T>(work, merge.tile.sequence, head, merge.tile.row + row, merged, max, sum);
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

template <class T>
Status RunAll(const CpuWork& work, const CpuContext& context) {
  const int64_t hk = work.params.num_kv_heads();
  ForItems(work, context, work.num_tiles * hk, [&](int64_t item, float* scratch) {
    DispatchTile<T>(work, work.tiles[item / hk], item % hk, scratch);
  });
  ForItems(work, context, work.num_merges * hk, [&](int64_t item, float* scratch) {
    RunMerge<T>(work, work.merges[item / hk], item % hk, scratch);
  });
  return {};
}

}  // namespace
}  // namespace attention

template <>
Status RunCpu<kIsa>(const attention::CpuWork& work, const CpuContext& context) {
  if (work.params.dtype == DType::kF32) return attention::RunAll<float>(work, context);
  if (work.params.dtype == DType::kF16) return attention::RunAll<F16>(work, context);
  return attention::RunAll<BF16>(work, context);
}

}  // namespace intarsia
