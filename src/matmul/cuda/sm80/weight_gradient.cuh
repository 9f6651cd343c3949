// The gradient of grouped products in their weights: out[g] = x[rows of g, :]^T d_out[rows of g,
// :]. A CTA has a tile of one group's result; its stages hold some rows of x and of d_out, [rows,
// columns]. Rows of other groups are zeros there. Four warps have a quarter of the tile each.
#pragma once
#include "src/core/cuda/launch.h"
#include "src/matmul/cuda/choose.h"
#include "src/matmul/cuda/rows.cuh"
#include "src/matmul/cuda/sm80/fragments.cuh"

namespace intarsia::matmul {

template <DType kType>
struct GradientConfig {
  using M = cuda::Mma<kType>;
  using T = typename M::T;
  static constexpr int kColumns = TileColumns(kType);  // of x, and of d_out
  static constexpr int kDepth = kDepthBytes / static_cast<int>(sizeof(T));
  static constexpr int kThreads = 32 * kTileWarps;
  using Rows = cuda::SwizzledRows<kColumns* static_cast<int>(sizeof(T))>;
  using Tile = AcrossRows<kType, Rows>;
  static constexpr int kTileBytes = kDepth * Rows::kRowBytes;
  static constexpr int kStageBytes = 2 * kTileBytes;
  static constexpr int kSharedBytes = kTileStages * kStageBytes;
  static constexpr int kWarpColumns = kColumns / 2;
  using Sums = float[kWarpColumns / 16][kWarpColumns / 8][4];
};

// Copies a stage's rows of one of the two arrays, each warp some of them.
template <class S>
__device__ __forceinline__ void LoadRows(char* tile, const void* array, int64_t row_elements,
                                         int first_column, int64_t first_row, int64_t end_row,
                                         bool aligned) {
  constexpr int kCopied = S::kDepth / kTileWarps;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int row = warp * kCopied + lane;
  const bool exists = lane < kCopied && first_row + row < end_row;
  const uint32_t exist = __ballot_sync(0xffffffffu, exists);
  CopyTile<typename S::Rows, kCopied>(
      tile + warp * kCopied * S::Rows::kRowBytes,
      static_cast<const typename S::T*>(array) + first_row * row_elements + first_column,
      exists ? row * row_elements : 0, exist, static_cast<int>(row_elements) - first_column,
      aligned);
}

template <class S>
__device__ __forceinline__ void MultiplyRows(const char* stage, int warp_k, int warp_n,
                                             typename S::Sums& sums) {
  using M = typename S::M;
#pragma unroll
  for (int step = 0; step < S::kDepth / M::kStep; ++step) {
    typename M::A a[S::kWarpColumns / 16];
#pragma unroll
    for (int i = 0; i < S::kWarpColumns / 16; ++i)
      S::Tile::LoadA(a[i], stage, step, warp_k + 16 * i);
#pragma unroll
    for (int n = 0; n < S::kWarpColumns / 8; n += 2) {
      typename M::B b[2];
      S::Tile::LoadB(b, stage + S::kTileBytes, step, warp_n + 8 * n);
#pragma unroll
      for (int i = 0; i < S::kWarpColumns / 16; ++i) {
        M::MultiplyAdd(sums[i][n], a[i], b[0]);
        M::MultiplyAdd(sums[i][n + 1], a[i], b[1]);
      }
    }
  }
}

// Grid: tiles of n, then of k, then groups.
template <DType kType>
__global__ void __launch_bounds__(GradientConfig<kType>::kThreads, 2)
    GroupedGradientKernel(const __grid_constant__ GroupedGradientParams p, bool aligned) {
  using S = GradientConfig<kType>;
  extern __shared__ __align__(128) char shared[];
  __shared__ RowRange found;
  const int k = static_cast<int>(p.k), n = static_cast<int>(p.n);
  const unsigned n_tiles = (n + S::kColumns - 1) / S::kColumns;
  const unsigned k_tiles = (k + S::kColumns - 1) / S::kColumns;
  const int group = static_cast<int>(blockIdx.x / (n_tiles * k_tiles));
  const int first_n = static_cast<int>(blockIdx.x % n_tiles) * S::kColumns;
  const int first_k = static_cast<int>(blockIdx.x / n_tiles % k_tiles) * S::kColumns;
  if (threadIdx.x < 32) {
    const RowRange rows = FindGroup(p.groups, group);
    if (threadIdx.x == 0) found = rows;
  }
  __syncthreads();
  const RowRange rows = found;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int warp_k = warp / 2 * S::kWarpColumns, warp_n = warp % 2 * S::kWarpColumns;
  typename S::Sums sums = {};
  Pipeline<kTileStages>(
      static_cast<int>((rows.end - rows.begin + S::kDepth - 1) / S::kDepth),
      [&](int at, int i) {
        char* const stage = shared + at * S::kStageBytes;
        const int64_t first = rows.begin + i * S::kDepth;
        LoadRows<S>(stage, p.x, p.k, first_k, first, rows.end, aligned);
        LoadRows<S>(stage + S::kTileBytes, p.d_out, p.n, first_n, first, rows.end, aligned);
      },
      [&](int at) {
        AddStage<kType>(sums, [&](typename S::Sums& part) {
          MultiplyRows<S>(shared + at * S::kStageBytes, warp_k, warp_n, part);
        });
      });
#pragma unroll
  for (int i = 0; i < 2 * (S::kWarpColumns / 16); ++i) {
    const int row = first_k + warp_k + cuda::LaneRow(lane, i);
    if (row >= k) continue;
#pragma unroll
    for (int j = 0; j < S::kWarpColumns / 8; ++j) {
      const int column = first_n + warp_n + cuda::LaneColumn(lane, j);
      StorePair(p.out, p.out_dtype, (group * p.k + row) * p.n + column, n - column,
                sums[i / 2][j][i % 2 * 2], sums[i / 2][j][i % 2 * 2 + 1]);
    }
  }
}

template <DType kType>
inline const cuda::Kernel kGradientKernel(
    "GroupedGradientKernel", reinterpret_cast<const void*>(&GroupedGradientKernel<kType>),
    GradientConfig<kType>::kSharedBytes);

template <DType kType>
Status LaunchGradient(const GroupedGradientParams& p, const CudaContext& context) {
  using S = GradientConfig<kType>;
  constexpr int64_t kBytes = sizeof(typename S::T);
  const bool aligned = cuda::AllAligned16(p.k * kBytes, p.x, p.d_out) && p.n * kBytes % 16 == 0;
  const int64_t tiles =
      CeilDiv<int64_t>(p.k, S::kColumns) * CeilDiv<int64_t>(p.n, S::kColumns) * p.groups.count;
  const cuda::LaunchConfig config{{tiles}, dim3(S::kThreads), S::kSharedBytes};
  return cuda::Launch(context, kGradientKernel<kType>, config, p, aligned);
}

}  // namespace intarsia::matmul
