#include <algorithm>
#include <utility>

#include "src/core/cpu/rows.h"
#include "src/core/dispatch.h"
#include "src/matmul/cpu/codes.h"
#include "src/matmul/cpu/columns.h"
#include "src/matmul/quantized.h"

namespace intarsia {
namespace matmul {
namespace {

constexpr int kFewRows = 4;            // of x: codes become numbers in registers
constexpr int64_t kAheadBytes = 1024;  // of a tile, asked for before they are needed
constexpr int64_t kManyRows = 128;     // of x at a time, beyond that
constexpr int64_t kManyTiles = 4, kManyColumns = kManyTiles * kTileRows, kManyBlocks = 2;

// Rows of x as f32, and the sums of their groups.
template <class T>
void PackRow(const QuantizedPass& pass, int64_t row) {
  const QuantizedParams& params = pass.params;
  const int64_t k = params.k, padded = params.blocks() * kBlockColumns;
  const T* const from = static_cast<const T*>(params.x) + (pass.first + row) * k;
  float* const to = pass.x + row * padded;
  ForLanes(k, [&](int64_t i, int lanes) { StoreN(to + i, LoadN(from + i, lanes), lanes); });
  std::fill(to + k, to + padded, 0.0f);
  if (!pass.sums) return;
  for (int64_t group = 0; group < params.groups; ++group) {
    VecF sum{};
    const int64_t end = std::min((group + 1) * params.group, padded);
    for (int64_t i = group * params.group; i < end; i += kLanes) sum += Load(to + i);
    pass.sums[row * params.groups + group] = Sum(sum);
  }
}

// What a group adds to sums of x q: the scale, and what sums of x are multiplied by.
struct Affine {
  VecF scale, zero;
};
[[gnu::always_inline]] inline Affine AffineAt(const QuantizedParams& params,
                                              const FactorReader& scales, const FactorReader& zeros,
                                              int64_t group, int part) {
  const VecF scale = scales.At(group, part);
  if (!params.zeros.data) return {scale, VecF{}};
  const VecF zero = zeros.At(group, part);
  return {scale, params.points ? -scale * zero : zero};
}

// Asks for a block ahead of time.
template <Format kFormat>
[[gnu::always_inline]] inline void Fetch(const uint8_t* block) {
  [&]<int... kLine>(std::integer_sequence<int, kLine...>) __attribute__((always_inline)) {
    (__builtin_prefetch(block + kLine * kLineBytes, 0, 2), ...);
  }(std::make_integer_sequence<int, BitsOf(kFormat)>());
}

// sums[chain][row] += x[row, column] q[column] for kCount columns of a block, from kFirst on.
template <Format kFormat, int kRows, int kChains, int kFirst, int kCount>
[[gnu::always_inline]] inline void AddColumns(const uint8_t* block, const float* x, int64_t x_row,
                                              VecF (&sums)[kChains][kRows][kParts]) {
  const auto add = [&]<int kColumn>() __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      const VecF q = CodesAt<kFormat, kColumn>(block, part);
#pragma GCC unroll 4
      for (int row = 0; row < kRows; ++row)
        sums[kColumn % kChains][row][part] += Splat(x[row * x_row + kColumn]) * q;
    }
  };
  [&]<int... kColumn>(std::integer_sequence<int, kColumn...>) __attribute__((always_inline)) {
    (add.template operator()<kFirst + kColumn>(), ...);
  }(std::make_integer_sequence<int, kCount>());
}

// sums[row] of a tile for a few rows of x: products with codes group by group, times the scale.
template <Format kFormat, int kRows>
[[gnu::noinline]] void MultiplyTile(const QuantizedPass& pass, int64_t tile, int64_t first_row,
                                    VecF (&sums)[kRows][kParts]) {
  constexpr int kChains = std::max(1, 4 / (kRows * kParts));
  constexpr int64_t kBlockBytes = BitsOf(kFormat) * kLineBytes;
  const QuantizedParams& params = pass.params;
  const int64_t padded = params.blocks() * kBlockColumns;
  const uint8_t* block = params.packed + tile * params.tile_bytes();
  const FactorReader scales(params.scales, params.groups, tile);
  const FactorReader zeros(params.zeros, params.groups, tile);
  const float* x = pass.x + first_row * padded;
  const float* const x_sums = pass.sums ? pass.sums + first_row * params.groups : nullptr;
#pragma GCC unroll 16
  for (int i = 0; i < kRows * kParts; ++i) sums[i / kParts][i % kParts] = VecF{};
  for (int64_t group = 0; group < params.groups; ++group) {
    VecF of_group[kChains][kRows][kParts] = {};
    if (SplitsBlocks(kFormat) && params.group == 16) {
      if (group % 2 == 0) {
        AddColumns<kFormat, kRows, kChains, 0, 16>(block, x, padded, of_group);
      } else {
        AddColumns<kFormat, kRows, kChains, 16, 16>(block, x, padded, of_group);
        block += kBlockBytes;
        x += kBlockColumns;
      }
    } else {
      const int64_t end = std::min((group + 1) * params.group, padded);
      for (int64_t column = group * params.group; column < end; column += kBlockColumns) {
        Fetch<kFormat>(block + kAheadBytes);
        AddColumns<kFormat, kRows, kChains, 0, kBlockColumns>(block, x, padded, of_group);
        block += kBlockBytes;
        x += kBlockColumns;
      }
    }
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      const Affine affine = AffineAt(params, scales, zeros, group, part);
#pragma GCC unroll 4
      for (int row = 0; row < kRows; ++row) {
        VecF sum = of_group[0][row][part];
#pragma GCC unroll 4
        for (int chain = 1; chain < kChains; ++chain) sum += of_group[chain][row][part];
        sums[row][part] += affine.scale * sum;
        if (params.zeros.data)
          sums[row][part] += affine.zero * Splat(x_sums[row * params.groups + group]);
      }
    }
  }
}

// out[row, column ...] = sums + bias.
template <class T, class Out>
[[gnu::always_inline]] inline void Finish(const QuantizedParams& params, VecF sums, int64_t row,
                                          int64_t column) {
  const T* const bias = static_cast<const T*>(params.bias);
  Store(static_cast<Out*>(params.out) + row * params.n() + column,
        bias ? sums + Load(bias + column) : sums);
}

template <Format kFormat, class T, class Out, int kRows = kFewRows>
void RunFewRows(const QuantizedPass& pass, int64_t tile, int64_t first_row = 0) {
  if (first_row + kRows <= pass.rows) {
    VecF sums[kRows][kParts];
    MultiplyTile<kFormat, kRows>(pass, tile, first_row, sums);
    for (int row = 0; row < kRows; ++row)
      for (int part = 0; part < kParts; ++part)
        Finish<T, Out>(pass.params, sums[row][part], pass.first + first_row + row,
                       tile * kTileRows + part * kLanes);
    first_row += kRows;
  }
  if constexpr (kRows > 1) {
    if (first_row < pass.rows) RunFewRows<kFormat, T, Out, kRows / 2>(pass, tile, first_row);
  }
}

// w[column][row] of some blocks of a tile, as numbers; rows are kManyColumns apart.
template <Format kFormat>
[[gnu::noinline]] void Decode(const QuantizedParams& params, int64_t tile, int64_t first_block,
                              int64_t blocks, float* w) {
  const FactorReader scales(params.scales, params.groups, tile);
  const FactorReader zeros(params.zeros, params.groups, tile);
  for (int64_t b = first_block; b < first_block + blocks; ++b) {
    const uint8_t* const block =
        params.packed + tile * params.tile_bytes() + b * BitsOf(kFormat) * kLineBytes;
    for (int part = 0; part < kParts; ++part) {
      float* const to = w + (b - first_block) * kBlockColumns * kManyColumns + part * kLanes;
      const auto half = [&]<int kFirst, int kCount>(const Affine& affine) {
        [&]<int... i>(std::integer_sequence<int, i...>) {
          (Store(to + (kFirst + i) * kManyColumns,
                 affine.scale * CodesAt<kFormat, kFirst + i>(block, part) + affine.zero),
           ...);
        }(std::make_integer_sequence<int, kCount>());
      };
      const int64_t group = b * kBlockColumns / params.group;
      const Affine affine = AffineAt(params, scales, zeros, group, part);
      half.template operator()<0, 16>(affine);
      const bool another = SplitsBlocks(kFormat) && params.group == 16 && group + 1 < params.groups;
      half.template operator()<16, 16>(another ? AffineAt(params, scales, zeros, group + 1, part)
                                               : affine);
    }
  }
}

// Many rows of x: a few tiles' numbers at a time are written down for all of them.
template <Format kFormat, class T, class Out>
void RunManyRows(const QuantizedPass& pass, int64_t first_row, int64_t rows, int64_t first_tile) {
  const QuantizedParams& params = pass.params;
  const int64_t padded = params.blocks() * kBlockColumns;
  const int64_t tiles = std::min(kManyTiles, params.tiles - first_tile);
  alignas(64) float w[kManyBlocks * kBlockColumns * kManyColumns];
  alignas(64) float sums[kManyRows * kManyColumns];
  std::fill(sums, sums + rows * kManyColumns, 0.0f);
  for (int64_t b = 0; b < params.blocks(); b += kManyBlocks) {
    const int64_t blocks = std::min(kManyBlocks, params.blocks() - b);
    for (int64_t tile = 0; tile < tiles; ++tile)
      Decode<kFormat>(params, first_tile + tile, b, blocks, w + tile * kTileRows);
    MultiplyColumns({pass.x + first_row * padded + b * kBlockColumns, padded, 1}, rows, w,
                    kManyColumns, blocks * kBlockColumns, tiles * kTileRows, sums, kManyColumns);
  }
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < tiles * kTileRows; column += kLanes)
      Finish<T, Out>(params, Load(sums + row * kManyColumns + column), pass.first + first_row + row,
                     first_tile * kTileRows + column);
}

template <Format kFormat, class T, class Out>
void RunAll(const QuantizedPass& pass, const CpuContext& context) {
  const QuantizedParams& params = pass.params;
  if (pass.rows <= kFewRows) {
    for (int64_t row = 0; row < pass.rows; ++row) PackRow<T>(pass, row);
    // Few enough tiles that all threads are busy, and enough to be worth a thread's wake-up.
    const int64_t worth = kTileElements / (std::max<int64_t>(params.k, 1) * kTileRows) + 1;
    const int64_t each = std::max(worth, params.tiles / (4 * context.num_threads()));
    context.ParallelFor(CeilDiv(params.tiles, each), [&](int64_t i) {
      const int64_t end = std::min(params.tiles, (i + 1) * each);
      for (int64_t tile = i * each; tile < end; ++tile) RunFewRows<kFormat, T, Out>(pass, tile);
    });
    return;
  }
  ForRows(context, pass.rows, params.k, [&](int64_t row) { PackRow<T>(pass, row); });
  const int64_t columns = CeilDiv(params.tiles, kManyTiles), rows = CeilDiv(pass.rows, kManyRows);
  context.ParallelFor(columns * rows, [&](int64_t i) {
    const int64_t first = i % rows * kManyRows;
    RunManyRows<kFormat, T, Out>(pass, first, std::min(kManyRows, pass.rows - first),
                                 i / rows * kManyTiles);
  });
}

template <class T, class Out>
void RunFormat(const QuantizedPass& pass, const CpuContext& context) {
  switch (pass.params.format) {
    case Format::kU4:
      return RunAll<Format::kU4, T, Out>(pass, context);
    case Format::kU4B8:
      return RunAll<Format::kU4B8, T, Out>(pass, context);
    case Format::kE2M1:
      return RunAll<Format::kE2M1, T, Out>(pass, context);
    case Format::kU5:
      return RunAll<Format::kU5, T, Out>(pass, context);
    case Format::kU5B16:
      return RunAll<Format::kU5B16, T, Out>(pass, context);
    case Format::kU6B32:
      return RunAll<Format::kU6B32, T, Out>(pass, context);
    case Format::kI8:
      return RunAll<Format::kI8, T, Out>(pass, context);
    case Format::kE4M3:
      return RunAll<Format::kE4M3, T, Out>(pass, context);
  }
}

}  // namespace
}  // namespace matmul

template <>
Status RunCpu<kIsa>(const matmul::QuantizedPass& pass, const CpuContext& context) {
  const matmul::QuantizedParams& params = pass.params;
  return DispatchDType<kF32, kF16, kBF16>("x", params.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    if (params.out_dtype == kType)
      matmul::RunFormat<T, T>(pass, context);
    else
      matmul::RunFormat<T, float>(pass, context);
    return {};
  });
}

}  // namespace intarsia
