#include <algorithm>

#include "src/core/cpu/rows.h"
#include "src/core/dispatch.h"
#include "src/matmul/cpu/code_units.h"
#include "src/matmul/cpu/panels.h"
#include "src/matmul/cpu/scaled_pass.h"

namespace intarsia {
namespace matmul {
namespace {

constexpr int64_t kLeastColumns = std::max(kLanes, kWeightRows);
constexpr int64_t kMostColumns = 64;                // of a tile: rows of w
constexpr int64_t kCachedBytes = int64_t{1} << 17;  // of packed rows that a core keeps
// Whose sums of products of int8 fit 32 bits, and end with a part.
constexpr int64_t kExactColumns = 65536;

template <class T>
constexpr bool kIsInt = std::is_same_v<T, I8>;
// Of a panel's products: sums of integers, which are exact, or of numbers.
template <class T>
using SumOf = std::conditional_t<kIsInt<T>, int32_t, float>;

// Scales of rows alone, or of all, wait for the sums of all columns. Results of int8 then are the
// same in every batch while f32 holds a lane's sum, below 2^24. Where blocks have scales, each
// block takes those of its row and its own.
constexpr float kOne = 1.0f;
constexpr BlockScales kOnes{&kOne};
BlockScales OfBlocks(const ScaledParams& params, const BlockScales& scales) {
  return params.has_blocks() ? scales : kOnes;
}
BlockScales OfResults(const ScaledParams& params, const BlockScales& scales) {
  return params.has_blocks() ? kOnes : scales;
}

// A block of rows of the pass.
struct Block {
  int64_t first, rows;
  float *packed, *scales;
};
Block BlockOf(const ScaledPass& pass, int64_t i) {
  return {i * kBlockRows, std::min(kBlockRows, pass.rows - i * kBlockRows),
          pass.packed + i * ScaledPass::PackedFloats(pass.params, kBlockRows),
          pass.scales + i * ScaledPass::ScaleFloats(pass.params)};
}
template <class Unit>
int64_t RowUnits(const ScaledParams& params) {
  return ScaledPass::Columns(params) / kCodesOf<Unit>;
}

// Lanes of sums that the panels of so many rows have, for each row of w.
constexpr int64_t LanesOf(int64_t rows) {
  int64_t lanes = 0;
  ForPanels(rows, [&]<int kWidth>(int64_t, int64_t) { lanes += kVecs<kWidth> * kLanes; });
  return lanes;
}

// 117 rows have more than 128 where a register has 16 lanes.
consteval bool LanesFit() {
  for (int64_t rows = 1; rows <= kBlockRows; ++rows)
    if (LanesOf(rows) > kMostLanes) return false;
  return true;
}
static_assert(LanesFit());

// Rows of units, one block of columns each, as a panel.
template <int kWidth>
[[gnu::noinline]] void PackUnits(const float* units, int64_t count, float* panel) {
  PackPanel<kWidth>([&](int64_t i, int64_t q, int) { return Load(units + i * count + q); }, count,
                    panel);
}

// The scales of the lanes of a panel's sums, in block b, of rows from `first` on.
template <int kWidth>
[[gnu::noinline]] void PackScales(const BlockScales& scales, int64_t first, int64_t rows, int64_t b,
                                  float* to) {
  for (int i = 0; i < kVecs<kWidth> * kLanes; ++i)
    to[i] = scales.At(first + std::min<int64_t>(i / kDepth<kWidth>, rows - 1), b);
}

// Packs blocks [begin, end) of the columns of a block of rows, and their scales.
template <class T, class Unit>
void Pack(const ScaledPass& pass, const Block& block, int64_t begin, int64_t end) {
  const ScaledParams& params = pass.params;
  constexpr int64_t kUnits = kScaleBlock / kCodesOf<Unit>;
  const int64_t row_units = RowUnits<Unit>(params), first_row = pass.first + block.first;
  const T* const x = static_cast<const T*>(params.x) + first_row * params.k;
  int64_t lane = 0;
  ForPanels(block.rows, [&]<int kWidth>(int64_t first, int64_t rows) {
    for (int64_t b = begin; b < end; ++b) {
      alignas(64) Unit units[kWidth * kUnits] = {};
      const int64_t column = b * kScaleBlock;
      const int64_t count = std::min<int64_t>(kScaleBlock, params.k - column);
      for (int64_t i = 0; i < rows; ++i)
        Decode<Factor::kX>(x + (first + i) * params.k + column, count, units + i * kUnits);
      PackUnits<kWidth>(reinterpret_cast<const float*>(units), kUnits,
                        block.packed + first * row_units + b * kUnits * kWidth);
      if (b < ScaledPass::Scales(params))
        PackScales<kWidth>(OfBlocks(params, params.x_scales), first_row + first, rows, b,
                           block.scales + b * kMostLanes + lane);
    }
    lane += kVecs<kWidth> * kLanes;
  });
}

// Some rows of w that a tile multiplies with a block of rows of x.
template <class T>
struct Tile {
  const T* w;
  int64_t k, columns, padded;
  const float* w_scales[kMostColumns];  // of each row's first block
  int64_t w_scale_block;
};

template <class T>
Tile<T> TileAt(const ScaledParams& params, int64_t first, int64_t columns) {
  const BlockScales scales = OfBlocks(params, params.w_scales);
  const T* const w = static_cast<const T*>(params.w) + first * params.k;
  const int64_t padded = RoundUp<int64_t>(columns, kLeastColumns);
  Tile<T> tile{w, params.k, columns, padded, {}, scales.block};
  for (int64_t j = 0; j < padded; ++j)
    tile.w_scales[j] = scales.data + (first + std::min(j, columns - 1)) / scales.rows * scales.row;
  return tile;
}

// totals += sw[r] sx[lane] sums, for each row r of w, and clears the sums.
template <int kWidth, class Sum>
[[gnu::always_inline]] inline void AddScaled(const float* x_scales,
                                             const float (&w_scales)[kWeightRows], Sum* sums,
                                             float* totals) {
  for (int r = 0; r < kWeightRows; ++r) {
    for (int v = 0; v < kVecs<kWidth>; ++v, sums += kLanes, totals += kLanes) {
      typedef Sum VecSum __attribute__((vector_size(kLanes * 4)));
      VecSum sum;
      std::memcpy(&sum, sums, sizeof sum);
      const VecF by = w_scales[r] * Load(x_scales + v * kLanes);
      Store(totals, Load(totals) + by * __builtin_convertvector(sum, VecF));
      std::memset(sums, 0, sizeof sum);
    }
  }
}

// totals[panel][column][lane] += the products of columns [q, q + part). `ends`: the sums are
// complete and take the scales of block b.
template <class T, class Unit>
void AddPart(const Block& block, const Tile<T>& tile, int64_t row_units, int64_t q, int64_t part,
             bool ends, int64_t b, SumOf<T>* sums, float* totals) {
  constexpr int64_t kOf = kCodesOf<Unit>;
  alignas(64) Unit units[kWeightRows * kPanelSum];
  const int64_t count = RoundUp<int64_t>(part, kScaleBlock) / kOf;
  for (int64_t j = 0; j < tile.padded; j += kWeightRows) {
    const Unit* rows[kWeightRows];
    float w_scales[kWeightRows];
    for (int64_t r = 0; r < kWeightRows; ++r) {
      Unit* const to = units + r * kPanelSum;
      Decode<Factor::kW>(tile.w + std::min(j + r, tile.columns - 1) * tile.k + q, part, to);
      rows[r] = to;
      w_scales[r] = tile.w_scales[j + r][b * tile.w_scale_block];
    }
    const Ahead ahead{reinterpret_cast<const char*>(tile.w + (j + kWeightRows) * tile.k + q),
                      tile.k, part, kWeightRows * kLanes * kOf};
    int64_t lane = 0;
    ForPanels(block.rows, [&]<int kWidth>(int64_t first, int64_t) {
      constexpr int kOfPanel = kVecs<kWidth> * kLanes;
      const int64_t at = lane * tile.padded + j * kOfPanel;
      MultiplyPanel<kWidth>(block.packed + first * row_units + q / kOf * kWidth, rows, count, ahead,
                            sums + at);
      if (ends)
        AddScaled<kWidth>(block.scales + b * kMostLanes + lane, w_scales, sums + at, totals + at);
      lane += kOfPanel;
    });
  }
}

void ReadBias(const ScaledParams& params, int64_t first, int64_t count, float* to) {
  (void)DispatchDType<kF32, kF16, kBF16>("bias", params.bias_dtype, [&]<DType kType>() {
    const auto* const from = static_cast<const CpuT<kType>*>(params.bias) + first;
    ForLanes(count, [&](int64_t i, int lanes) { StoreN(to + i, LoadN(from + i, lanes), lanes); });
    return Status{};
  });
}

// Results of a tile, with scales that waited and the bias, rounded once.
template <class Out>
void Write(const ScaledPass& pass, const Block& block, int64_t column, int64_t columns,
           const float* results) {
  const ScaledParams& params = pass.params;
  const BlockScales x_scales = OfResults(params, params.x_scales);
  const BlockScales w_scales = OfResults(params, params.w_scales);
  alignas(64) float bias[kMostColumns] = {}, scales[kMostColumns];
  if (params.bias) ReadBias(params, column, columns, bias);
  for (int64_t j = 0; j < columns; ++j) scales[j] = w_scales.At(column + j, 0);
  const int64_t first = pass.first + block.first;
  Out* out = static_cast<Out*>(params.out) + first * params.n + column;
  for (int64_t i = 0; i < block.rows; ++i, results += columns, out += params.n) {
    const VecF x_scale = Splat(x_scales.At(first + i, 0));
    ForLanes(columns, [&](int64_t j, int lanes) {
      const VecF y = x_scale * LoadN(scales + j, lanes) * LoadN(results + j, lanes);
      StoreN(out + j, params.bias ? y + LoadN(bias + j, lanes) : y, lanes);
    });
  }
}

// results[rows, columns] = the scaled products of a tile.
template <class T, class Unit>
void Multiply(const ScaledPass& pass, const Block& block, int64_t column, int64_t columns,
              float* results) {
  const ScaledParams& params = pass.params;
  const Tile<T> tile = TileAt<T>(params, column, columns);
  alignas(64) SumOf<T> sums[kMostLanes * kMostColumns];
  alignas(64) float totals[kMostLanes * kMostColumns];
  const int64_t used = LanesOf(block.rows) * tile.padded;
  std::fill(sums, sums + used, SumOf<T>{});
  std::fill(totals, totals + used, 0.0f);
  const int64_t together = params.has_blocks() ? kScaleBlock
                           : kIsInt<T>         ? kExactColumns
                                               : kPanelSum;
  for (int64_t q = 0, part; q < params.k; q += part) {
    part = std::min({together, kPanelSum, params.k - q});
    const bool ends = q + part == params.k || (q + part) % together == 0;
    AddPart<T, Unit>(block, tile, RowUnits<Unit>(params), q, part, ends,
                     params.has_blocks() ? q / kScaleBlock : 0, sums, totals);
  }
  const float* panel_totals = totals;
  ForPanels(block.rows, [&]<int kWidth>(int64_t first, int64_t rows) {
    const float* const no_bias = nullptr;
    Finish<kWidth>(panel_totals, rows, no_bias, columns, results + first * columns, columns);
    panel_totals += tile.padded * kVecs<kWidth> * kLanes;
  });
}

// Rows of w that a tile takes. Rows of x that a core's cache holds meet w row by row, whose bytes
// then come in long runs. Others come from further away, and meet many rows of w each time.
template <class Unit>
int64_t TileColumns(const ScaledPass& pass, int num_threads) {
  const int64_t rows = std::min(pass.rows, kBlockRows), blocks = CeilDiv(pass.rows, kBlockRows);
  if (rows * RowUnits<Unit>(pass.params) * 4 <= kCachedBytes) return kLeastColumns;
  const int64_t shared = pass.params.n * blocks / (4 * num_threads);
  return std::clamp(shared, kLeastColumns, kMostColumns) / kLeastColumns * kLeastColumns;
}

template <class T, class Unit>
void RunAll(const ScaledPass& pass, const CpuContext& context) {
  const ScaledParams& params = pass.params;
  const int64_t rows = std::min(pass.rows, kBlockRows), blocks = CeilDiv(pass.rows, kBlockRows);
  const int64_t each = CeilDiv(kTileElements, rows * kScaleBlock);
  const int64_t parts = CeilDiv(params.blocks(), each);
  context.ParallelFor(blocks * parts, [&](int64_t i) {
    const int64_t begin = i % parts * each;
    Pack<T, Unit>(pass, BlockOf(pass, i / parts), begin, std::min(begin + each, params.blocks()));
  });
  const int64_t columns = TileColumns<Unit>(pass, context.num_threads());
  const int64_t tiles = CeilDiv(params.n, columns);
  ForRows(context, tiles * blocks, columns * params.k, [&](int64_t i) {
    const Block block = BlockOf(pass, i % blocks);
    const int64_t column = i / blocks * columns, count = std::min(columns, params.n - column);
    alignas(64) float results[kBlockRows * kMostColumns];
    Multiply<T, Unit>(pass, block, column, count, results);
    (void)DispatchDType<kF32, kF16, kBF16>("out_dtype", params.out_dtype, [&]<DType kType>() {
      Write<CpuT<kType>>(pass, block, column, count, results);
      return Status{};
    });
  });
}

}  // namespace
}  // namespace matmul

template <>
Status RunCpu<kIsa>(const matmul::ScaledPass& pass, const CpuContext& context) {
  using namespace matmul;
  const bool integers = pass.params.dtype == DType::kI8;
#if defined(__AVX512F__)
  if (integers && HasQuads()) return RunAll<I8, Quad>(pass, context), Status{};
  if (!integers && HasPairsOfCodes()) return RunAll<F8E4M3, Pair>(pass, context), Status{};
#endif
  integers ? RunAll<I8, float>(pass, context) : RunAll<F8E4M3, float>(pass, context);
  return {};
}

}  // namespace intarsia
