// Which rows and columns a CTA computes. Sizes of groups are on the device alone, so the grid has
// room for any, and each CTA finds its own part.
#pragma once
#include "src/matmul/grouped.h"

namespace intarsia::matmul {

// Rows [row, row + rows) of one group, and a tile of columns. group -1: rows of no group, counted
// among those alone; they lie before row `covered` and behind the `covered_rows` from there on.
struct Unit {
  int group, row, rows, column_tile;
  int covered, covered_rows;

  // Of the results, the row of no group that is number i of them.
  __device__ __forceinline__ int RowOfNoGroup(int i) const {
    return i < covered ? i : i + covered_rows;
  }
};

// Of what the lanes before this one have: `add` is associative, 0 its neutral element.
template <class Add>
__device__ __forceinline__ uint32_t SumBefore(uint32_t x, Add add, uint32_t& all) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const uint32_t other = __shfl_up_sync(0xffffffffu, x, offset);
    if (lane >= offset) x = add(x, other);
  }
  all = __shfl_sync(0xffffffffu, x, 31);
  const uint32_t before = __shfl_up_sync(0xffffffffu, x, 1);
  return lane == 0 ? 0 : before;
}

// The groups that a lane looks at, neighbors, and where the first of them begins.
struct LaneGroups {
  int first, end;
  uint32_t row;  // m < 2^31, so that the sum of two rows fits

  __device__ __forceinline__ explicit LaneGroups(const GroupSizes& sizes) {
    const int all = static_cast<int>(sizes.all), each = (all + 31) / 32;
    first = min(static_cast<int>(threadIdx.x % 32) * each, all);
    end = min(first + each, all);
    const auto add = [&](uint32_t a, uint32_t b) {
      return min(a + b, static_cast<uint32_t>(sizes.m));
    };
    uint32_t rows = 0, every;
#pragma unroll 4
    for (int i = first; i < end; ++i) rows = add(rows, static_cast<uint32_t>(sizes.SizeAt(i)));
    row = SumBefore(rows, add, every);
  }

  // fn(group, its first row, how many) for each.
  template <class Fn>
  __device__ __forceinline__ void ForEach(const GroupSizes& sizes, Fn fn) const {
    uint32_t begin = row;
    for (int i = first; i < end; ++i) {
      const auto stop = static_cast<uint32_t>(sizes.Sum(begin, sizes.SizeAt(i)));
      fn(i, static_cast<int>(begin), static_cast<int>(stop - begin));
      begin = stop;
    }
  }
};

// How a group's rows are cut into tiles: all as high as the first, but for the last.
template <int kTileRows>
struct EqualTiles {
  static constexpr int kRows = kTileRows;  // of a tile, at most
  static INTARSIA_HOST_DEVICE constexpr int Count(int rows) {
    return (rows + kTileRows - 1) / kTileRows;
  }
  // The first row of a tile, or, behind the last tile, `rows`.
  static INTARSIA_HOST_DEVICE constexpr int Begin(int rows, int tile) {
    return tile * kTileRows < rows ? tile * kTileRows : rows;
  }
};

// Cuts a group's tiles and the columns into units: kTogether tiles of rows, or what is left, for
// the first columns, then for the next ones.
template <class Tiles, int kTogether>
__device__ __forceinline__ Unit UnitOfGroup(int group, int row, int rows, int column_tiles,
                                            int unit) {
  const int together = unit / (kTogether * column_tiles) * kTogether;
  const int in_step = min(kTogether, Tiles::Count(rows) - together);
  const int in_band = unit - together * column_tiles;
  const int tile = together + in_band % in_step, begin = Tiles::Begin(rows, tile);
  return {group, row + begin, Tiles::Begin(rows, tile + 1) - begin, in_band / in_step, 0, 0};
}

// Finds units; a warp together.
template <class Tiles, int kTogether>
class UnitFinder {
 public:
  __device__ __forceinline__ UnitFinder(const GroupSizes& sizes, int column_tiles)
      : sizes_(sizes),
        column_tiles_(column_tiles),
        groups_(sizes),
        offset_(static_cast<int>(sizes.Offset())),
        end_(offset_ + static_cast<int>(sizes.count)) {
    const auto plus = [](uint32_t a, uint32_t b) { return a + b; };
    uint32_t tiles = 0, before = 0, here = 0;
    groups_.ForEach(sizes, [&](int group, int, int rows) {
      if (group < offset_) before += rows;
      if (!IsHere(group)) return;
      here += rows;
      tiles += Tiles::Count(rows);
    });
    first_tile_ = SumBefore(tiles, plus, all_tiles_);
    SumBefore(before, plus, before_);
    SumBefore(here, plus, here_);
  }

  __device__ __forceinline__ int64_t Units() const {
    const auto others = static_cast<uint32_t>(sizes_.m) - here_;
    return (int64_t{all_tiles_} + (others + Tiles::kRows - 1) / Tiles::kRows) * column_tiles_;
  }
  // Unit `index` of all, in each lane. rows 0: there is none.
  __device__ __forceinline__ Unit Find(int64_t index) const {
    const int64_t units = int64_t{all_tiles_} * column_tiles_;
    if (index >= units) {
      const int64_t tile = (index - units) / column_tiles_;
      const int64_t left = sizes_.m - here_ - tile * Tiles::kRows;
      return {-1,
              static_cast<int>(min(tile * Tiles::kRows, sizes_.m)),
              static_cast<int>(max(min(left, int64_t{Tiles::kRows}), int64_t{0})),
              static_cast<int>((index - units) % column_tiles_),
              static_cast<int>(before_),
              static_cast<int>(here_)};
    }
    Unit found{};
    int64_t first = int64_t{first_tile_} * column_tiles_;
    bool is_mine = false;
    groups_.ForEach(sizes_, [&](int group, int row, int rows) {
      if (!IsHere(group)) return;
      const int64_t of_group = int64_t{Tiles::Count(rows)} * column_tiles_;
      if (index >= first && index < first + of_group) {
        found = UnitOfGroup<Tiles, kTogether>(group - offset_, row, rows, column_tiles_,
                                              static_cast<int>(index - first));
        is_mine = true;
      }
      first += of_group;
    });
    const int from = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, is_mine))) - 1;
    return {__shfl_sync(0xffffffffu, found.group, from),
            __shfl_sync(0xffffffffu, found.row, from),
            __shfl_sync(0xffffffffu, found.rows, from),
            __shfl_sync(0xffffffffu, found.column_tile, from),
            0,
            0};
  }

 private:
  __device__ __forceinline__ bool IsHere(int group) const {
    return group >= offset_ && group < end_;
  }

  const GroupSizes& sizes_;
  const int column_tiles_;
  const LaneGroups groups_;
  const int offset_, end_;
  // Tiles of the lanes before this one, and of all; rows before those of the groups at hand, and
  // theirs.
  uint32_t first_tile_, all_tiles_, before_, here_;
};

// The rows of group `index` at hand, in each lane of the warp that calls it.
__device__ __forceinline__ RowRange FindGroup(const GroupSizes& sizes, int index) {
  const LaneGroups groups(sizes);
  const int wanted = static_cast<int>(sizes.Offset()) + index;
  int row = 0, rows = 0;
  groups.ForEach(sizes, [&](int group, int begin, int count) {
    if (group == wanted) row = begin, rows = count;
  });
  const bool has = groups.first <= wanted && wanted < groups.end;
  const unsigned lanes = __ballot_sync(0xffffffffu, has);
  if (lanes == 0) return {};
  const int from = __ffs(static_cast<int>(lanes)) - 1;
  row = __shfl_sync(0xffffffffu, row, from);
  return {row, row + __shfl_sync(0xffffffffu, rows, from)};
}

}  // namespace intarsia::matmul
