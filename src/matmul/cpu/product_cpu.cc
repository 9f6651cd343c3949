#include <algorithm>

#include "src/core/cpu/rows.h"
#include "src/core/cpu/simd.h"
#include "src/core/dispatch.h"
#include "src/matmul/cpu/columns.h"
#include "src/matmul/cpu/panels.h"
#include "src/matmul/cpu/product.h"

namespace intarsia {
namespace matmul {
namespace {

constexpr int64_t kSumFloats = 8192;  // of a tile
// Columns of a tile whose weights lie column by column, and the weights that it takes at a time.
constexpr int64_t kMostColumns = 1024, kWeightsAtOnce = 4096;

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

template <class T>
void Pack(const Product& product, const Group& group, const Block& block) {
  const int64_t count = group.count, row_floats = PackedRow(product, count);
  const auto row = [&](int64_t i) { return RowOf<T>(product, group, block.first + i); };
  if (product.order == Order::kRows) {
    ForPanels(block.rows, [&]<int kWidth>(int64_t first, int64_t rows) {
      PackPanel<kWidth>([&](int64_t i) { return row(first + i); }, rows, count,
                        block.packed + first * row_floats);
    });
  } else if (product.x_column == 1) {
    for (int64_t i = 0; i < block.rows; ++i) {
      const T* const from = row(i);
      float* const to = block.packed + i * row_floats;
      ForLanes(count, [&](int64_t q, int lanes) {
        StoreN(to + q, from ? LoadN(from + q, lanes) : VecF{}, lanes);
      });
    }
  } else {  // the sum goes over rows of x
    const T* const from = static_cast<const T*>(product.x) + group.x + block.first;
    for (int64_t q = 0; q < count; ++q) {
      float* const to = block.packed + q * PackedRow(product, block.rows);
      ForLanes(block.rows, [&](int64_t i, int lanes) {
        StoreN(to + i, LoadN(from + q * product.x_column + i, lanes), lanes);
      });
    }
  }
}

template <class T, class Out>
void RunByRows(const Tile<T, Out>& tile) {
  const int64_t columns = tile.columns, count = tile.count, rows = tile.block.rows;
  const int64_t padded = RoundUp<int64_t>(columns, kLanes), w_row = tile.product.w_row;
  const int64_t row_floats = PackedRow(tile.product, count);
  alignas(64) float sums[kSumFloats];
  alignas(64) float wide[kWeightRows * kPanelSum];
  int64_t used = 0;
  ForPanels(rows, [&]<int kWidth>(int64_t, int64_t) { used += padded * kVecs<kWidth> * kLanes; });
  std::fill(sums, sums + used, 0.0f);
  // A single row meets each weight once, and widens it in a register. Its parts are long runs of
  // memory; what is left of a register comes last.
  const bool single = rows == 1;
  for (int64_t q = 0, part; q < count; q += part) {
    part = std::min(single ? kRowSum : kPanelSum, count - q);
    if (single && part > kLanes) part -= part % kLanes;
    const int64_t padded_part = RoundUp<int64_t>(part, kLanes);
    for (int64_t j = 0; j < padded; j += kWeightRows) {
      const T* w_rows[kWeightRows];
      for (int64_t r = 0; r < kWeightRows; ++r)
        w_rows[r] = tile.w + std::min(j + r, columns - 1) * w_row + q;
      const Ahead ahead{reinterpret_cast<const char*>(tile.w + (j + kWeightRows) * w_row + q),
                        w_row * static_cast<int64_t>(sizeof(T)),
                        part * static_cast<int64_t>(sizeof(T)),
                        kWeightRows * kLanes * static_cast<int64_t>(sizeof(T))};
      const auto multiply = [&]<class W>(const W* const(&weights)[kWeightRows]) {
        float* panel_sums = sums;
        ForPanels(rows, [&]<int kWidth>(int64_t first, int64_t) {
          if constexpr (std::is_same_v<W, float> || kWidth == 1)
            MultiplyPanel<kWidth>(tile.block.packed + first * row_floats + q * kWidth, weights,
                                  padded_part, ahead, panel_sums + j * kVecs<kWidth> * kLanes);
          panel_sums += padded * kVecs<kWidth> * kLanes;
        });
      };
      if (part == padded_part && (std::is_same_v<T, float> || single)) {
        multiply(w_rows);
        continue;
      }
      const float* wide_rows[kWeightRows];
      for (int64_t r = 0; r < kWeightRows; ++r) {
        wide_rows[r] = wide + r * kPanelSum;
        ForLanes(part, [&](int64_t i, int lanes) {
          Store(wide + r * kPanelSum + i, LoadN(w_rows[r] + i, lanes));
        });
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

template <class T, class Out>
void RunByColumns(const Tile<T, Out>& tile) {
  const Product& product = tile.product;
  const int64_t columns = tile.columns, rows = tile.block.rows;
  const int64_t sums_row = RoundUp<int64_t>(columns, kLanes);
  alignas(64) float sums[kSumFloats];
  std::fill(sums, sums + rows * sums_row, 0.0f);
  const int64_t step = std::clamp<int64_t>(kWeightsAtOnce / columns, 16, 64);
  const Strided a = product.x_column == 1
                        ? Strided{tile.block.packed, PackedRow(product, tile.count), 1}
                        : Strided{tile.block.packed, 1, PackedRow(product, rows)};
  for (int64_t q = 0; q < tile.count; q += step)
    MultiplyColumns({a.data + q * a.column, a.row, a.column}, rows, tile.w + q * product.w_row,
                    product.w_row, std::min(step, tile.count - q), columns, sums, sums_row);
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
    room = std::min(room, kMostColumns);
    // Tiles of about one size.
    const int64_t tiles = CeilDiv(product.n, std::min(RoundUp(wanted, kAlignFloats), room));
    return RoundUp(CeilDiv(product.n, tiles), kAlignFloats);
  }
  return std::min(RoundUp(wanted, kAlignFloats), room);
}

template <class T, class Out>
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
  by_rows ? RunByRows(tile) : RunByColumns(tile);
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
  // Blocks first, then tiles, numbered through all groups.
  int64_t blocks = 0, tiles = 0;
  for (Group& group : pass.groups) {
    group.tile = blocks;
    blocks += CeilDiv(group.rows, kBlockRows);
  }
  const auto first = [](const Group& group) { return group.tile; };
  context.ParallelFor(blocks, [&](int64_t i) {
    const Group& group = GroupAt(pass, i, first);
    Pack<T>(pass.product, group, BlockOf(pass, group, i - group.tile));
  });
  for (Group& group : pass.groups) {
    group.columns = TileColumns(pass.product, group, blocks, context.num_threads());
    group.tile = tiles;
    tiles += CeilDiv(group.rows, kBlockRows) * CeilDiv(pass.product.n, group.columns);
  }
  context.ParallelFor(tiles, [&](int64_t i) {
    const Group& group = GroupAt(pass, i, first);
    RunTile<T, Out>(pass, group, i - group.tile);
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
