#include <algorithm>

#include "src/core/cpu/rows.h"
#include "src/core/cpu/simd.h"
#include "src/core/dispatch.h"
#include "src/matmul/cpu/columns.h"
#include "src/matmul/cpu/pairs.h"
#include "src/matmul/cpu/panels.h"
#include "src/matmul/cpu/product.h"

namespace intarsia {
namespace matmul {
namespace {

constexpr int64_t kSumFloats = 8192;  // of a tile
// Columns of a tile whose weights lie column by column, and the weights that it takes at a time.
constexpr int64_t kMostColumns = 1024, kWeightsAtOnce = 4096;

// Unit: what a lane of packed rows holds of a sum, a float or a Pair.
template <class Unit>
constexpr int64_t kOfUnit = std::is_same_v<Unit, Pair> ? 2 : 1;
template <class Unit>
constexpr int64_t Units(int64_t count) {
  return CeilDiv(count, kOfUnit<Unit>);
}
// Columns of w that are multiplied at once, where they lie column by column.
template <class Unit>
constexpr int64_t kColumnsOfUnit = kLanes * kOfUnit<Unit>;

#if defined(__AVX512F__)
// Whether a product is faster by pairs, where the machine has them (docs/notebook/cpu.md). A row
// alone waits for memory, and so do two that meet w column by column. Few numbers of a sum fill
// few pairs.
bool TakesPairs(const Product& product, const Group& group) {
  const int64_t fewest_rows = product.order == Order::kRows ? 2 : 3, least_count = 8;
  return group.rows >= fewest_rows && group.count >= least_count && HasPairs();
}
#endif
// fn.operator()<Unit>() for a group of T.
template <class T, class Fn>
auto WithUnit([[maybe_unused]] const Product& product, [[maybe_unused]] const Group& group, Fn fn) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<T, BF16>)
    if (TakesPairs(product, group)) return fn.template operator()<Pair>();
#endif
  return fn.template operator()<float>();
}

// A block of rows of a group, and where they are packed.
struct Block {
  int64_t first, rows;
  float* packed;
};
Block BlockOf(const Pass& pass, const Group& group, int64_t i) {
  const int64_t first = i * kBlockRows;
  return {first, std::min(kBlockRows, group.rows - first),
          pass.packed + group.packed + i * BlockFloats(pass.product, kBlockRows, group.count)};
}

// What one tile computes: rows of a block times some columns of w.
template <class T, class Out>
struct Tile {
  const Product& product;
  Block block;
  int64_t count, columns;
  const T *w, *bias;
  Out* out;
};

// Row `row` of a group of x, or null where it takes none.
template <class T>
const T* RowOf(const Product& product, const Group& group, int64_t row) {
  const T* const x = static_cast<const T*>(product.x);
  if (!product.rows.data) return x + group.x + row * product.x_row;
  const int64_t taken = product.rows.At(group.first + row);
  return taken < 0 || taken >= product.x_rows ? nullptr : x + taken * product.x_row;
}

// Units q ... q + lanes - 1 of a row of `count` numbers; null stands for zeros.
template <class Unit, class T>
[[gnu::always_inline]] inline VecF LoadUnits(const T* row, int64_t count, int64_t q, int lanes) {
  if (!row) return VecF{};
  if constexpr (std::is_same_v<Unit, Pair>) {
    float pairs[kLanes];
    CopyPairs(row + 2 * q, count - 2 * q, kLanes, pairs);
    return Load(pairs);
  } else {
    return LoadN(row + q, lanes);
  }
}

template <class T, class Unit>
void Pack(const Product& product, const Group& group, const Block& block) {
  const int64_t count = group.count, units = Units<Unit>(count);
  const int64_t row_floats = PackedRow(product, units);
  const auto row = [&](int64_t i) { return RowOf<T>(product, group, block.first + i); };
  if (product.order == Order::kRows) {
    ForPanels(block.rows, [&]<int kWidth>(int64_t first, int64_t rows) {
      PackPanel<kWidth>(
          [&](int64_t i, int64_t q, int lanes) {
            return LoadUnits<Unit>(i < rows ? row(first + i) : nullptr, count, q, lanes);
          },
          units, block.packed + first * row_floats);
    });
  } else if (product.x_column == 1) {
    for (int64_t i = 0; i < block.rows; ++i) {
      const T* const from = row(i);
      float* const to = block.packed + i * row_floats;
      ForLanes(units, [&](int64_t q, int lanes) {
        StoreN(to + q, LoadUnits<Unit>(from, count, q, lanes), lanes);
      });
    }
  } else {  // the sum goes over rows of x
    const T* const from = static_cast<const T*>(product.x) + group.x + block.first;
    for (int64_t q = 0; q < units; ++q) {
      float* const to = block.packed + q * PackedRow(product, block.rows);
      ForLanes(block.rows, [&](int64_t i, int lanes) {
        const auto load = [&](int64_t at) {
          return at < count ? LoadN(from + at * product.x_column + i, lanes) : VecF{};
        };
        if constexpr (std::is_same_v<Unit, Pair>)
          StoreN(to + i, PairsOf(load(2 * q), load(2 * q + 1)), lanes);
        else
          StoreN(to + i, load(q), lanes);
      });
    }
  }
}

// Units of w's rows that RunByRows multiplies at a time, from unit q on. A single row meets each
// weight once, and widens it in a register; pairs are not widened. Then parts end before what is
// left of a register, which comes last, and those of a single row are long runs of memory.
template <class Unit>
int64_t PartFrom(int64_t q, int64_t count, bool single) {
  const int64_t left = Units<Unit>(count) - q, whole = count / kOfUnit<Unit> - q;
  const bool in_place = single || std::is_same_v<Unit, Pair>;
  if (!in_place) return std::min(kPanelSum, left);
  if (whole < kLanes) return left;
  const int64_t part = std::min(single ? kRowSum : kPanelSum, whole);
  return part - part % kLanes;
}

template <class T, class Out, class Unit>
void RunByRows(const Tile<T, Out>& tile) {
  constexpr int64_t kOf = kOfUnit<Unit>;
  // W: what weights lie as.
  using W = std::conditional_t<std::is_same_v<Unit, Pair>, Pair, T>;
  const int64_t columns = tile.columns, count = tile.count, rows = tile.block.rows;
  // MultiplyPanel adds to kWeightRows columns at a time, which may be more than a register's.
  const int64_t padded = RoundUp<int64_t>(columns, std::max(kLanes, kWeightRows));
  const int64_t w_row = tile.product.w_row;
  const int64_t units = Units<Unit>(count), row_floats = PackedRow(tile.product, units);
  alignas(64) float sums[kSumFloats];
  alignas(64) Unit wide[kWeightRows * kPanelSum];
  int64_t used = 0;
  ForPanels(rows, [&]<int kWidth>(int64_t, int64_t) { used += padded * kVecs<kWidth> * kLanes; });
  std::fill(sums, sums + used, 0.0f);
  const bool single = rows == 1;
  for (int64_t q = 0, part; q < units; q += part) {
    part = PartFrom<Unit>(q, count, single);
    const int64_t padded_part = RoundUp<int64_t>(part, kLanes);
    for (int64_t j = 0; j < padded; j += kWeightRows) {
      const W* w_rows[kWeightRows];
      for (int64_t r = 0; r < kWeightRows; ++r)
        w_rows[r] = reinterpret_cast<const W*>(tile.w + std::min(j + r, columns - 1) * w_row) + q;
      const Ahead ahead{reinterpret_cast<const char*>(tile.w + (j + kWeightRows) * w_row + q * kOf),
                        w_row * static_cast<int64_t>(sizeof(T)),
                        part * static_cast<int64_t>(sizeof(W)),
                        kWeightRows * kLanes * static_cast<int64_t>(sizeof(W))};
      const auto multiply = [&]<class Weight>(const Weight* const(&weights)[kWeightRows]) {
        float* panel_sums = sums;
        ForPanels(rows, [&]<int kWidth>(int64_t first, int64_t) {
          if constexpr (std::is_same_v<Weight, Unit> || kWidth == 1)
            MultiplyPanel<kWidth>(tile.block.packed + first * row_floats + q * kWidth, weights,
                                  padded_part, ahead, panel_sums + j * kVecs<kWidth> * kLanes);
          panel_sums += padded * kVecs<kWidth> * kLanes;
        });
      };
      if (part == padded_part && (q + part) * kOf <= count && (std::is_same_v<W, Unit> || single)) {
        multiply(w_rows);
        continue;
      }
      const Unit* wide_rows[kWeightRows];
      for (int64_t r = 0; r < kWeightRows; ++r) {
        Unit* const to = wide + r * kPanelSum;
        wide_rows[r] = to;
        if constexpr (std::is_same_v<Unit, Pair>)
          CopyPairs(&w_rows[r]->first, count - q * kOf, padded_part, to);
        else
          ForLanes(part, [&](int64_t i, int lanes) { Store(to + i, LoadN(w_rows[r] + i, lanes)); });
      }
      multiply(wide_rows);
    }
  }
  const float* panel_sums = sums;
  ForPanels(rows, [&]<int kWidth>(int64_t first, int64_t panel_rows) {
    Finish<kWidth>(panel_sums, panel_rows, tile.bias, columns, tile.out + first * tile.product.n,
                   tile.product.n);
    panel_sums += padded * kVecs<kWidth> * kLanes;
  });
}

template <class T, class Out, class Unit>
void RunByColumns(const Tile<T, Out>& tile) {
  constexpr int64_t kOf = kOfUnit<Unit>, kAtOnce = kColumnsOfUnit<Unit>;
  const Product& product = tile.product;
  const int64_t columns = tile.columns, rows = tile.block.rows;
  const int64_t sums_row = RoundUp<int64_t>(columns, kAtOnce);
  alignas(64) float sums[kSumFloats];
  std::fill(sums, sums + rows * sums_row, 0.0f);
  const int64_t step = std::clamp<int64_t>(kWeightsAtOnce / columns, 16, 64) / kOf * kOf;
  const Strided a = product.x_column == 1
                        ? Strided{tile.block.packed, PackedRow(product, Units<Unit>(tile.count)), 1}
                        : Strided{tile.block.packed, 1, PackedRow(product, rows)};
  for (int64_t q = 0; q < tile.count; q += step) {
    const Strided from{a.data + q / kOf * a.column, a.row, a.column};
    const T* const w = tile.w + q * product.w_row;
    const int64_t part = std::min(step, tile.count - q);
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<Unit, Pair>) {
      MultiplyColumnsOfPairs<kSumFloats>(from, rows, w, product.w_row, part, columns, sums,
                                         sums_row);
      continue;
    }
#endif
    MultiplyColumns(from, rows, w, product.w_row, part, columns, sums, sums_row);
  }
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<Unit, Pair>)
    for (int64_t i = 0; i < rows * sums_row; i += kAtOnce) SortColumns(sums + i);
#endif
  for (int64_t i = 0; i < rows; ++i) {
    ForLanes(columns, [&](int64_t j, int lanes) {
      const VecF sum = Load(sums + i * sums_row + j);
      StoreN(tile.out + i * product.n + j, tile.bias ? sum + LoadN(tile.bias + j, lanes) : sum,
             lanes);
    });
  }
}

// Rows of w, or columns, that a tile takes: few enough that all threads are busy and the sums have
// room, and enough to be worth a thread's wake-up. `blocks`: of all groups.
template <class Unit>
int64_t TileColumns(const Product& product, const Group& group, int64_t blocks, int num_threads) {
  const int64_t rows = std::min(group.rows, kBlockRows);
  int64_t floats = rows;
  if (product.order == Order::kRows) {
    floats = 0;
    ForPanels(rows, [&]<int kWidth>(int64_t, int64_t) { floats += kVecs<kWidth> * kLanes; });
  }
  const int64_t shared = product.n * blocks / (4 * num_threads);
  const int64_t worth = kTileElements / std::max<int64_t>(group.count, 1);
  int64_t room = kSumFloats / floats / kAlignFloats * kAlignFloats;
  const int64_t wanted = std::max({shared, worth, int64_t{1}});
  if (product.order == Order::kColumns) {
    constexpr int64_t kAlign = std::max(kAlignFloats, kColumnsOfUnit<Unit>);
    room = std::min(room / kAlign * kAlign, kMostColumns);
    // Tiles of about one size.
    const int64_t tiles = CeilDiv(product.n, std::min(RoundUp(wanted, kAlign), room));
    return RoundUp(CeilDiv(product.n, tiles), kAlign);
  }
  return std::min(RoundUp(wanted, kAlignFloats), room);
}

template <class T, class Out, class Unit>
void RunTile(const Pass& pass, const Group& group, int64_t i) {
  const Product& product = pass.product;
  const int64_t blocks = CeilDiv(group.rows, kBlockRows), column = i / blocks * group.columns;
  const Block block = BlockOf(pass, group, i % blocks);
  const bool by_rows = product.order == Order::kRows;
  const T* const bias = static_cast<const T*>(product.bias);
  const Tile<T, Out> tile{
      product,
      block,
      group.count,
      std::min(group.columns, product.n - column),
      static_cast<const T*>(product.w) + group.w + column * (by_rows ? product.w_row : 1),
      bias ? bias + group.bias + column : nullptr,
      static_cast<Out*>(product.out) + group.out + block.first * product.n + column};
  by_rows ? RunByRows<T, Out, Unit>(tile) : RunByColumns<T, Out, Unit>(tile);
  for (int64_t row = 0; product.rows.data && row < block.rows; ++row)
    if (!RowOf<T>(product, group, block.first + row))
      std::memset(tile.out + row * product.n, 0, static_cast<size_t>(tile.columns) * sizeof(Out));
}

// The group in which a tile, or a block, of all groups lies: the last whose `first` is not beyond.
template <class First>
const Group& GroupAt(const Pass& pass, int64_t i, First first) {
  size_t low = 0;
  for (size_t high = pass.groups.size(); high - low > 1;) {
    const size_t middle = (low + high) / 2;
    (first(pass.groups[middle]) <= i ? low : high) = middle;
  }
  return pass.groups[low];
}

template <class T, class Out>
Status RunAll(const Pass& pass, const CpuContext& context) {
  const Product& product = pass.product;
  // Blocks first, then tiles, numbered through all groups.
  int64_t blocks = 0, tiles = 0;
  for (Group& group : pass.groups) {
    group.tile = blocks;
    blocks += CeilDiv(group.rows, kBlockRows);
  }
  const auto first = [](const Group& group) { return group.tile; };
  context.ParallelFor(blocks, [&](int64_t i) {
    const Group& group = GroupAt(pass, i, first);
    WithUnit<T>(product, group, [&]<class Unit>() {
      Pack<T, Unit>(product, group, BlockOf(pass, group, i - group.tile));
    });
  });
  for (Group& group : pass.groups) {
    group.columns = WithUnit<T>(product, group, [&]<class Unit>() {
      return TileColumns<Unit>(product, group, blocks, context.num_threads());
    });
    group.tile = tiles;
    tiles += CeilDiv(group.rows, kBlockRows) * CeilDiv(product.n, group.columns);
  }
  context.ParallelFor(tiles, [&](int64_t i) {
    const Group& group = GroupAt(pass, i, first);
    WithUnit<T>(product, group,
                [&]<class Unit>() { RunTile<T, Out, Unit>(pass, group, i - group.tile); });
  });
  return {};
}

}  // namespace
}  // namespace matmul

template <>
Status RunCpu<kIsa>(const matmul::Pass& pass, const CpuContext& context) {
  const matmul::Product& product = pass.product;
  return DispatchDType<kF32, kF16, kBF16>("x", product.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    return product.out_dtype == kType ? matmul::RunAll<T, T>(pass, context)
                                      : matmul::RunAll<T, float>(pass, context);
  });
}

}  // namespace intarsia
