// The way through the keys of a sequence, page by page. For *_cpu.cc files only.
#pragma once
#include <algorithm>
#include <cstdint>

#include "src/attention/cpu/forward.h"
#include "src/core/cpu/simd_8bit.h"

namespace intarsia::attention {
namespace {

// Keys taken at a time where they lie, and asked for ahead: K and V of so many fit in the L1 cache.
inline constexpr int64_t kStreamKeys = 32;

// The keys [first, first + count) of one sequence and KV head; rows a stride of elements apart.
template <class T>
struct KeyBlock {
  int64_t first = 0, count = 0;
  const T* k = nullptr;
  const T* v = nullptr;
  int64_t k_stride = 0, v_stride = 0;

  void Skip(int64_t keys) {
    first += keys;
    count -= keys;
    k += keys * k_stride;
    v += keys * v_stride;
  }
  // Leaves those within `range`.
  void Clip(const KeyRange& range) {
    Skip(std::clamp<int64_t>(range.begin - first, 0, count));
    count = std::clamp<int64_t>(range.end - first, 0, count);
  }
};

// Walks the keys [begin, end) of one sequence and KV head run by run: the keys of a run lie in
// neighboring slots of one page. Pages that do not exist are passed over.
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
  // hardware follows a stream to the end of a 4 KiB page at most, and neighboring keys of a head
  // are often that far apart. Inlined by force: GCC drops calls of a function that does nothing
  // else.
  [[gnu::always_inline]] void Prefetch() const {
    constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
    for (int64_t j = 0; j < std::min(run_.count, kStreamKeys); ++j) {
      for (int64_t i = 0; i < params_.head_dim; i += kLine)
        __builtin_prefetch(run_.k + j * run_.k_stride + i, 0, 3);
      for (int64_t i = 0; i < params_.cache.v_head_dim; i += kLine)
        __builtin_prefetch(run_.v + j * run_.v_stride + i, 0, 2);
    }
  }

  // Leaves the first `count` keys of the run behind.
  void Advance(int64_t count) {
    if (count == run_.count) return FindRun(run_.first + count);
    run_.Skip(count);
  }

 private:
  void FindRun(int64_t key) {
    const CacheView& cache = params_.cache;
    run_ = {.first = end_,
            .count = 0,
            .k = nullptr,
            .v = nullptr,
            .k_stride = cache.k_strides.slot,
            .v_stride = cache.v_strides.slot};
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

// Rows of K or V as f32; what lies beyond d in the last register's lanes is 0.
template <class T>
void Convert(const T* from, int64_t from_stride, int64_t count, int64_t d, float* to,
             int64_t to_stride) {
  for (int64_t j = 0; j < count; ++j)
    ForLanes(d, [&](int64_t i, int lanes) {
      Store(to + j * to_stride + i, LoadN(from + j * from_stride + i, lanes));
    });
}

// The next kTileKeys keys as f32; fewer before a page that does not exist and at the end. Rows are
// padded_d and padded_dv apart, and what lies beyond the registers that hold d stays as it is.
template <class T>
KeyBlock<float> Gather(KeyWalk<T>& walk, const CpuWork& work, float* k_tile, float* v_tile) {
  const CacheView& cache = work.params.cache;
  KeyBlock<float> tile{.first = walk.run().first,
                       .count = 0,
                       .k = k_tile,
                       .v = v_tile,
                       .k_stride = work.padded_d,
                       .v_stride = work.padded_dv};
  while (walk.run().count > 0 && walk.run().first == tile.first + tile.count &&
         tile.count < kTileKeys) {
    const KeyBlock<T>& run = walk.run();
    const int64_t count = std::min(run.count, kTileKeys - tile.count);
    Convert(run.k, run.k_stride, count, cache.head_dim, k_tile + tile.count * tile.k_stride,
            tile.k_stride);
    Convert(run.v, run.v_stride, count, cache.v_head_dim, v_tile + tile.count * tile.v_stride,
            tile.v_stride);
    tile.count += count;
    walk.Advance(count);
  }
  return tile;
}

}  // namespace
}  // namespace intarsia::attention
