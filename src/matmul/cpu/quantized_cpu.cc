#include <algorithm>
#include <cmath>
#include <utility>

#include "src/core/cpu/rows.h"
#include "src/core/dispatch.h"
#include "src/matmul/cpu/codes.h"
#include "src/matmul/cpu/codes_int8.h"
#include "src/matmul/cpu/columns.h"
#include "src/matmul/quantized.h"

namespace intarsia {
namespace matmul {
namespace {

// Up to so many rows of x, codes become numbers in registers, anew for every four rows.
constexpr int kFewRows = kLanes >= 16 ? 16 : 4;
constexpr int64_t kManyRows = 128;  // of x at a time, beyond that
constexpr int64_t kManyTiles = 4, kManyColumns = kManyTiles * kTileRows, kManyBlocks = 2;

// Rounds a row of x to int8, block by block: codes, and the numbers that they stand for. A block
// with NaN or an infinity becomes NaN.
void RoundRow(const QuantizedPass& pass, int64_t row, float* x) {
  const int64_t blocks = pass.params.blocks();
  for (int64_t block = 0; block < blocks; ++block, x += kBlockColumns) {
    float largest = 0, nan = 0;
    for (int64_t i = 0; i < kBlockColumns; ++i) {
      largest = std::max(largest, std::fabs(x[i]));
      nan += x[i] * 0.0f;  // which is no number if x is none, or infinite
    }
    const float scale = largest / 127.0f + nan;
    const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
    int8_t* const codes = pass.codes + (row * blocks + block) * kBlockColumns;
    int32_t sum = 0;
    for (int64_t i = 0; i < kBlockColumns; ++i) {
      const float code = std::nearbyint(std::clamp(x[i] * inverse, -127.0f, 127.0f));
      const auto byte = static_cast<int8_t>(code == code ? code : 0.0f);
      const int64_t place =
          i / kStepColumns * kStepColumns + PlaceInStep(pass.params.format, i % kStepColumns);
      codes[place] = byte;
      sum += byte;
      x[i] = static_cast<float>(byte) * scale;
    }
    pass.code_scales[row * blocks + block] = scale;
    pass.code_sums[row * blocks + block] = sum;
  }
}

// Rows of x as f32, and the sums of their groups.
template <class T>
void PackRow(const QuantizedPass& pass, int64_t row) {
  const QuantizedParams& params = pass.params;
  const int64_t k = params.k, padded = params.blocks() * kBlockColumns;
  const int64_t at = pass.first + row;
  const T* const from = static_cast<const T*>(params.x) + params.RowOf(at) * k;
  float* const to = pass.x + row * padded;
  ForLanes(k, [&](int64_t i, int lanes) { StoreN(to + i, LoadN(from + i, lanes), lanes); });
  std::fill(to + k, to + padded, 0.0f);
  if (pass.codes) RoundRow(pass, row, to);
  if (!pass.sums) return;
  for (int64_t group = 0; group < params.groups; ++group) {
    VecF sum{};
    const int64_t end = std::min((group + 1) * params.group, padded);
    for (int64_t i = group * params.group; i < end; i += kLanes) sum += Load(to + i);
    pass.sums[row * params.groups + group] = Sum(sum);
  }
}

// sums[chain][row] += x[row, column] q[column] for the 8 columns of a step.
template <Format kFormat, int kRows, int kChains>
[[gnu::always_inline]] inline void AddStep(const uint8_t* block, int step, const float* x,
                                           int64_t x_row, VecF (&sums)[kChains][kRows][kParts]) {
#pragma GCC unroll 4
  for (int part = 0; part < kParts; ++part) {
    const StepWords<kFormat> words = WordsOf<kFormat>(block, step, part);
    const auto add = [&]<int kColumn>() __attribute__((always_inline)) {
      const VecF q = CodesAt<kFormat, kColumn>(words);
#pragma GCC unroll 4
      for (int row = 0; row < kRows; ++row)
        sums[kColumn % kChains][row][part] += Splat(x[row * x_row + kColumn]) * q;
    };
    [&]<int... kColumn>(std::integer_sequence<int, kColumn...>) __attribute__((always_inline)) {
      (add.template operator()<kColumn>(), ...);
    }(std::make_integer_sequence<int, kStepColumns>());
  }
}

// out[row, 0 ... 15] = the sums of a tile for a few rows of x: products with codes group by group,
// times the scale.
template <Format kFormat, int kRows>
[[gnu::noinline]] void MultiplyTile(const QuantizedPass& pass, int64_t tile, int64_t first_row,
                                    float* out) {
  constexpr int kChains = std::max(1, 4 / (kRows * kParts));
  constexpr int64_t kBlockBytes = BitsOf(kFormat) * kLineBytes;
  const QuantizedParams& params = pass.params;
  const int64_t padded = params.blocks() * kBlockColumns;
  const uint8_t* const codes = params.packed + tile * params.tile_bytes();
  const float* const x = pass.x + first_row * padded;
  const float* const x_sums = pass.sums ? pass.sums + first_row * params.groups : nullptr;
  const int64_t steps = padded / kStepColumns, group_steps = params.group / kStepColumns;
  VecF sums[kRows][kParts] = {};
  Affine affine;
  for (int64_t group = 0; group < params.groups; ++group) {
    const int64_t at = group % kGroupsAtOnce * kTileRows;
    if (at == 0)
      ReadAffine(params, tile, group, std::min(kGroupsAtOnce, params.groups - group), affine);
    VecF of_group[kChains][kRows][kParts] = {};
    const int64_t end = std::min((group + 1) * group_steps, steps);
    for (int64_t step = group * group_steps; step < end; ++step) {
      const uint8_t* const block = codes + step / kBlockSteps * kBlockBytes;
      // As many lines as a step has, and the fifth or sixth of a block with its first steps.
      const uint8_t* const ahead = codes + kAheadBytes + step * (kBlockBytes / kBlockSteps);
      __builtin_prefetch(ahead, 0, 2);
      if constexpr (kBlockBytes / kBlockSteps > kLineBytes)
        __builtin_prefetch(ahead + kLineBytes, 0, 2);
      AddStep<kFormat, kRows, kChains>(block, static_cast<int>(step % kBlockSteps),
                                       x + step * kStepColumns, padded, of_group);
    }
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      const VecF scale = Load(affine.scale + at + part * kLanes);
      const VecF zero = Load(affine.zero + at + part * kLanes);
#pragma GCC unroll 4
      for (int row = 0; row < kRows; ++row) {
        VecF sum = of_group[0][row][part];
#pragma GCC unroll 4
        for (int chain = 1; chain < kChains; ++chain) sum += of_group[chain][row][part];
        sums[row][part] += scale * sum;
        if (x_sums) sums[row][part] += zero * Splat(x_sums[row * params.groups + group]);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows * kParts; ++i) Store(out + i * kLanes, sums[i / kParts][i % kParts]);
}

// w[column][row] of some blocks of a tile, as numbers; rows are kManyColumns apart.
template <Format kFormat>
void DecodeTile(const QuantizedParams& params, int64_t tile, int64_t first_block, int64_t blocks,
                float* w) {
  const uint8_t* const codes = params.packed + tile * params.tile_bytes();
  const int64_t first = first_block * kBlockSteps, end = first + blocks * kBlockSteps;
  // The last group may end within a block.
  const auto group_of = [&](int64_t step) {
    return std::min(step * kStepColumns / params.group, params.groups - 1);
  };
  const int64_t first_group = group_of(first);
  Affine affine;
  ReadAffine(params, tile, first_group, group_of(end - 1) + 1 - first_group, affine);
  for (int64_t step = first; step < end; ++step) {
    const uint8_t* const block = codes + step / kBlockSteps * BitsOf(kFormat) * kLineBytes;
    const int64_t at = (group_of(step) - first_group) * kTileRows;
    for (int part = 0; part < kParts; ++part) {
      const VecF scale = Load(affine.scale + at + part * kLanes);
      const VecF zero = Load(affine.zero + at + part * kLanes);
      const StepWords<kFormat> words =
          WordsOf<kFormat>(block, static_cast<int>(step % kBlockSteps), part);
      float* const to = w + (step - first) * kStepColumns * kManyColumns + part * kLanes;
      [&]<int... i>(std::integer_sequence<int, i...>) {
        (Store(to + i * kManyColumns, scale * CodesAt<kFormat, i>(words) + zero), ...);
      }(std::make_integer_sequence<int, kStepColumns>());
    }
  }
}

// The code of one format.
struct Kernels {
  void (*one_row)(const QuantizedPass&, int64_t tile, int64_t first_row, float* out);
  void (*two_rows)(const QuantizedPass&, int64_t tile, int64_t first_row, float* out);
  void (*four_rows)(const QuantizedPass&, int64_t tile, int64_t first_row, float* out);
  void (*decode)(const QuantizedParams&, int64_t tile, int64_t first_block, int64_t blocks,
                 float* w);
  // Of a row in int8; null where that is no faster.
  void (*int8_row)(const QuantizedPass&, int64_t tile, int64_t row, float* out);
};
template <Format kFormat>
constexpr auto Int8Row() -> decltype(Kernels::int8_row) {
#if defined(__AVX512F__)
  if constexpr (HasBytes(kFormat)) return &MultiplyTileInt8<kFormat>;
#endif
  return nullptr;
}
template <Format kFormat>
constexpr Kernels kKernels = {&MultiplyTile<kFormat, 1>, &MultiplyTile<kFormat, 2>,
                              &MultiplyTile<kFormat, 4>, &DecodeTile<kFormat>, Int8Row<kFormat>()};

// The kernel for rows in int8, if this call can take it.
auto Int8RowFor(const QuantizedPass& pass, const Kernels& kernels) -> decltype(Kernels::int8_row) {
#if defined(__AVX512F__)
  if (pass.codes && pass.params.group % kBlockColumns == 0 && HasVnni()) return kernels.int8_row;
#endif
  (void)pass, (void)kernels;
  return nullptr;
}

const Kernels& KernelsFor(Format format) {
  switch (format) {
    case Format::kU4:
      return kKernels<Format::kU4>;
    case Format::kU4B8:
      return kKernels<Format::kU4B8>;
    case Format::kE2M1:
      return kKernels<Format::kE2M1>;
    case Format::kU5:
      return kKernels<Format::kU5>;
    case Format::kU5B16:
      return kKernels<Format::kU5B16>;
    case Format::kU6B32:
      return kKernels<Format::kU6B32>;
    case Format::kI8:
      return kKernels<Format::kI8>;
    case Format::kE4M3:
      break;
  }
  return kKernels<Format::kE4M3>;
}

// out[row, column ...] = sums + bias + residual.
template <class T, class Out>
[[gnu::always_inline]] inline void Finish(const QuantizedParams& params, VecF sums, int64_t row,
                                          int64_t column) {
  const T* const bias = static_cast<const T*>(params.bias);
  const T* const residual = static_cast<const T*>(params.residual);
  const int64_t to = row * params.n() + column;
  if (bias) sums += Load(bias + column);
  if (residual) sums += Load(residual + to);
  Store(static_cast<Out*>(params.out) + to, sums);
}

// Few rows of x: codes become numbers in registers.
template <class T, class Out>
void RunFewRows(const QuantizedPass& pass, const Kernels& kernels, int64_t tile) {
  const auto int8_row = Int8RowFor(pass, kernels);
  for (int64_t row = 0, rows = 0; row < pass.rows; row += rows) {
    const int64_t left = int8_row ? 1 : pass.rows - row;
    rows = left >= 4 ? 4 : left >= 2 ? 2 : 1;
    const auto multiply = int8_row    ? int8_row
                          : rows == 4 ? kernels.four_rows
                          : rows == 2 ? kernels.two_rows
                                      : kernels.one_row;
    alignas(64) float sums[4 * kTileRows];
    multiply(pass, tile, row, sums);
    for (int64_t i = 0; i < rows * kTileRows; i += kLanes)
      Finish<T, Out>(pass.params, Load(sums + i), pass.first + row + i / kTileRows,
                     tile * kTileRows + i % kTileRows);
  }
}

// Many rows of x: a few tiles' numbers at a time are written down for all of them.
template <class T, class Out>
void RunManyRows(const QuantizedPass& pass, const Kernels& kernels, int64_t first_row, int64_t rows,
                 int64_t first_tile) {
  const QuantizedParams& params = pass.params;
  const int64_t padded = params.blocks() * kBlockColumns;
  const int64_t tiles = std::min(kManyTiles, params.tiles - first_tile);
  alignas(64) float w[kManyBlocks * kBlockColumns * kManyColumns];
  alignas(64) float sums[kManyRows * kManyColumns];
  std::fill(sums, sums + rows * kManyColumns, 0.0f);
  for (int64_t b = 0; b < params.blocks(); b += kManyBlocks) {
    const int64_t blocks = std::min(kManyBlocks, params.blocks() - b);
    for (int64_t tile = 0; tile < tiles; ++tile)
      kernels.decode(params, first_tile + tile, b, blocks, w + tile * kTileRows);
    MultiplyColumns({pass.x + first_row * padded + b * kBlockColumns, padded, 1}, rows, w,
                    kManyColumns, blocks * kBlockColumns, tiles * kTileRows, sums, kManyColumns);
  }
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < tiles * kTileRows; column += kLanes)
      Finish<T, Out>(params, Load(sums + row * kManyColumns + column), pass.first + first_row + row,
                     first_tile * kTileRows + column);
}

template <class T, class Out>
void RunAll(const QuantizedPass& pass, const CpuContext& context) {
  const QuantizedParams& params = pass.params;
  const Kernels& kernels = KernelsFor(params.format);
  if (pass.rows <= kFewRows) {
    for (int64_t row = 0; row < pass.rows; ++row) PackRow<T>(pass, row);
    // Few enough tiles that all threads are busy, and enough to be worth a thread's wake-up.
    const int64_t worth = kTileElements / (std::max<int64_t>(params.k, 1) * kTileRows) + 1;
    const int64_t each = std::max(worth, params.tiles / (4 * context.num_threads()));
    context.ParallelFor(CeilDiv(params.tiles, each), [&](int64_t i) {
      const int64_t end = std::min(params.tiles, (i + 1) * each);
      for (int64_t tile = i * each; tile < end; ++tile) RunFewRows<T, Out>(pass, kernels, tile);
    });
    return;
  }
  ForRows(context, pass.rows, params.k, [&](int64_t row) { PackRow<T>(pass, row); });
  const int64_t columns = CeilDiv(params.tiles, kManyTiles), rows = CeilDiv(pass.rows, kManyRows);
  context.ParallelFor(columns * rows, [&](int64_t i) {
    const int64_t first = i % rows * kManyRows;
    RunManyRows<T, Out>(pass, kernels, first, std::min(kManyRows, pass.rows - first),
                        i / rows * kManyTiles);
  });
}

}  // namespace
}  // namespace matmul

template <>
Status RunCpu<kIsa>(const matmul::QuantizedPass& pass, const CpuContext& context) {
  const matmul::QuantizedParams& params = pass.params;
  return DispatchDType<kF32, kF16, kBF16>("x", params.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    if (params.out_dtype == kType)
      matmul::RunAll<T, T>(pass, context);
    else
      matmul::RunAll<T, float>(pass, context);
    return {};
  });
}

}  // namespace intarsia
