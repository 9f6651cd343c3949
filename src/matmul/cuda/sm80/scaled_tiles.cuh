// A product of codes (scaled.h) by tiles: 64 rows of x and 128 rows of w, which share a scale. A
// stage holds a block of both; eight warps, two by four, have a part of the tile each.
#pragma once
#include "src/core/cuda/launch.h"
#include "src/matmul/cuda/rows.cuh"
#include "src/matmul/cuda/scaled_factors.cuh"
#include "src/matmul/cuda/sm80/fragments.cuh"
#include "src/matmul/cuda/sm80/scaled.h"
#include "src/matmul/cuda/sm80/scaled_mma.cuh"

namespace intarsia::matmul {

struct ScaledTile {
  using Rows = cuda::SwizzledRows<kScaleBlock>;
  static constexpr int kRows = 64, kColumns = kScaleBlock, kStages = 3;
  static constexpr int kWarps = 8, kWarpRows = 32, kWarpColumns = 32;
  static constexpr int kBytesX = kRows * kScaleBlock;
  static constexpr int kStageBytes = kBytesX + kColumns * kScaleBlock;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  template <class T>
  using Fragments = T[kWarpRows / 16][kWarpColumns / 8][4];
};

// Asks for kCount rows of a matrix [rows, k] from `row` on, columns `first` to first + 127.
template <int kCount, class T>
__device__ __forceinline__ void CopyCodes(char* target, const T* codes, int64_t rows, int64_t k,
                                          int64_t row, int64_t first, bool aligned) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool exists = lane < kCount && row + lane < rows;
  CopyTile<ScaledTile::Rows, kCount>(target, codes + first, exists ? (row + lane) * k : 0,
                                     __ballot_sync(0xffffffffu, exists),
                                     static_cast<int>(k - first), aligned);
}

template <DType kType>
__device__ __forceinline__ void MultiplyBlock(
    const char* stage, int warp_row, int warp_column,
    ScaledTile::Fragments<typename CodeMma<kType>::Sum>& part) {
  using S = ScaledTile;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const uint32_t x = cuda::SharedAddress(stage) + cuda::LaneOffsetA<S::Rows>(lane);
  const uint32_t w = cuda::SharedAddress(stage) + S::kBytesX + cuda::LaneOffsetB<S::Rows>(lane);
#pragma unroll
  for (int step = 0; step < kScaleBlock / 32; ++step) {
    uint32_t a[S::kWarpRows / 16][4];
#pragma unroll
    for (int i = 0; i < S::kWarpRows / 16; ++i)
      cuda::LdMatrix4(a[i], S::Rows::AtStep(x, step) + (warp_row + 16 * i) * S::Rows::kRowBytes);
#pragma unroll
    for (int n = 0; n < S::kWarpColumns / 8; n += 2) {
      uint32_t b[4];
      cuda::LdMatrix4(b, S::Rows::AtStep(w, step) + (warp_column + 8 * n) * S::Rows::kRowBytes);
#pragma unroll
      for (int i = 0; i < S::kWarpRows / 16; ++i) {
        CodeMma<kType>::MultiplyAdd(part[i][n], a[i], b[0], b[1]);
        CodeMma<kType>::MultiplyAdd(part[i][n + 1], a[i], b[2], b[3]);
      }
    }
  }
}

// sums += factors of block b times part, for rows from `row` on.
template <class Part>
__device__ __forceinline__ void AddBlock(const ScaledParams& p, int row, int column, int b,
                                         const ScaledTile::Fragments<Part>& part,
                                         ScaledTile::Fragments<float>& sums) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float of_w = OfBlock(p.w_scales, column, b);
#pragma unroll
  for (int i = 0; i < 2 * (ScaledTile::kWarpRows / 16); ++i) {
    const int at = min(row + cuda::LaneRow(lane, i), static_cast<int>(p.m) - 1);
    const float factor = of_w * OfBlock(p.x_scales, at, b);
#pragma unroll
    for (int n = 0; n < ScaledTile::kWarpColumns / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e)
        sums[i / 2][n][i % 2 * 2 + e] += factor * static_cast<float>(part[i / 2][n][i % 2 * 2 + e]);
    }
  }
}

__device__ __forceinline__ void StoreScaled(const ScaledParams& p, int first_row, int first_column,
                                            const ScaledTile::Fragments<float>& sums) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < 2 * (ScaledTile::kWarpRows / 16); ++i) {
    const int row = first_row + cuda::LaneRow(lane, i);
    if (row >= p.m) continue;
    const float of_row = OfAllBlocks(p.x_scales, row);
#pragma unroll
    for (int n = 0; n < ScaledTile::kWarpColumns / 8; ++n) {
      const int column = first_column + cuda::LaneColumn(lane, n);
      const int columns = static_cast<int>(p.n) - column;
      float both[2] = {};
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (e < columns)
          both[e] = sums[i / 2][n][i % 2 * 2 + e] * (of_row * OfAllBlocks(p.w_scales, column + e)) +
                    BiasAt(p, column + e);
      StorePair(p.out, p.out_dtype, row * p.n + column, columns, both[0], both[1]);
    }
  }
}

// Grid: as many CTAs as tiles.
template <DType kType>
__global__ void __launch_bounds__(32 * ScaledTile::kWarps, kType == DType::kI8 ? 2 : 1)
    ScaledTileKernel(const __grid_constant__ ScaledParams p, bool aligned) {
  using S = ScaledTile;
  using T = cuda::DeviceT<kType>;
  extern __shared__ __align__(128) char shared[];
  cuda::AwaitPrevious();
  cuda::LetNextBegin();
  const ScaledTiles::Place place = TilesOf<S>(p).At(blockIdx.x);
  const int row = static_cast<int>(place.row_tile) * S::kRows;
  const int column = static_cast<int>(place.column_tile) * S::kColumns;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int warp_row = warp / 4 * S::kWarpRows, warp_column = warp % 4 * S::kWarpColumns;
  S::Fragments<float> sums = {};
  int b = 0;
  Pipeline<S::kStages>(
      static_cast<int>(p.blocks()),
      [&](int stage, int i) {
        char* const to = shared + stage * S::kStageBytes;
        constexpr int kX = S::kRows / S::kWarps, kW = S::kColumns / S::kWarps;
        CopyCodes<kX>(to + warp * kX * kScaleBlock, static_cast<const T*>(p.x), p.m, p.k,
                      row + warp * kX, int64_t{i} * kScaleBlock, aligned);
        CopyCodes<kW>(to + S::kBytesX + warp * kW * kScaleBlock, static_cast<const T*>(p.w), p.n,
                      p.k, column + warp * kW, int64_t{i} * kScaleBlock, aligned);
      },
      [&](int stage) {
        using Part = typename CodeMma<kType>::Sum;
        S::Fragments<Part> part = {};
        MultiplyBlock<kType>(shared + stage * S::kStageBytes, warp_row, warp_column, part);
        AddBlock<Part>(p, row + warp_row, column, b++, part, sums);
      });
  StoreScaled(p, row + warp_row, column + warp_column, sums);
}

template <DType kType>
inline const cuda::Kernel kScaledTileKernel("ScaledTileKernel",
                                            reinterpret_cast<const void*>(&ScaledTileKernel<kType>),
                                            ScaledTile::kSharedBytes);

template <DType kType>
Status LaunchScaledTilesOf(const ScaledParams& p, const CudaContext& context) {
  const bool aligned = cuda::AllAligned16(p.k, p.x, p.w) &&
                       std::max(p.m, p.n) * p.k < int64_t{1} << 36;  // offsets in CopyRows
  const cuda::LaunchConfig config{.grid = {TilesOf<ScaledTile>(p).count()},
                                  .block = dim3(32 * ScaledTile::kWarps),
                                  .shared_bytes = ScaledTile::kSharedBytes,
                                  .overlaps_previous = true};
  return cuda::Launch(context, kScaledTileKernel<kType>, config, p, aligned);
}

}  // namespace intarsia::matmul
