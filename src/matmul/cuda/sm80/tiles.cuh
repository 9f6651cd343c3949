// Grouped products by tiles: out[rows of a group, columns] = x[rows taken, :] w[group] + bias.
// A CTA has one tile of a group; its stages hold a tile of x, [rows, depth], and one of w, [depth,
// columns], or transposed [columns, depth]. Four warps, two by two, have a quarter of the tile
// each.
#pragma once
#include "src/core/cuda/launch.h"
#include "src/matmul/cuda/choose.h"
#include "src/matmul/cuda/rows.cuh"
#include "src/matmul/cuda/sm80/fragments.cuh"

namespace intarsia::matmul {

template <DType kType, int kTileRows, bool kTransposed>
struct TileConfig {
  static constexpr DType kDType = kType;
  using M = cuda::Mma<kType>;
  using T = typename M::T;
  static constexpr bool kIsTransposed = kTransposed;
  static constexpr int kRows = kTileRows, kColumns = TileColumns(kType);
  static constexpr int kDepth = kDepthBytes / static_cast<int>(sizeof(T));
  static constexpr int kThreads = 32 * kTileWarps;
  using RowsX = cuda::SwizzledRows<kDepthBytes>;
  using RowsW =
      cuda::SwizzledRows<kTransposed ? kDepthBytes : kColumns* static_cast<int>(sizeof(T))>;
  using X = AlongRows<kType, RowsX>;
  using W = std::conditional_t<kTransposed, AlongRows<kType, RowsW>, AcrossRows<kType, RowsW>>;
  static constexpr int kBytesX = kRows * kDepthBytes;
  static constexpr int kStageBytes = kBytesX + kColumns * kDepthBytes;
  static constexpr int kSharedBytes = TileSharedBytes(kType, kTileRows);
  static_assert(kSharedBytes == kTileStages * kStageBytes);
  static constexpr int kWarpRows = kRows / 2, kWarpColumns = kColumns / 2;
  using Sums = float[kWarpRows / 16][kWarpColumns / 8][4];
};

// The copies of one warp: some rows of x, and some of w.
template <class S>
class TileStream {
 public:
  using T = typename S::T;
  static constexpr int kCopiedX = S::kRows / kTileWarps;
  static constexpr int kCopiedW = (S::kIsTransposed ? S::kColumns : S::kDepth) / kTileWarps;

  __device__ __forceinline__ TileStream(const GroupedParams& p, const Unit& unit, bool aligned)
      : p_(p),
        w_(static_cast<const T*>(p.w) + unit.group * p.k * p.n),
        first_column_(unit.column_tile * S::kColumns),
        aligned_(aligned) {
    const int lane = static_cast<int>(threadIdx.x % 32), row = Warp() * kCopiedX + lane;
    const int64_t taken =
        lane < kCopiedX && row < unit.rows ? RowTaken(p, unit.row + row) : int64_t{-1};
    exist_x_ = __ballot_sync(0xffffffffu, taken >= 0);
    offset_x_ = max(taken, int64_t{0}) * p.k;
  }

  // Asks for kDepth elements of the sum.
  __device__ __forceinline__ void Load(char* stage, int first) const {
    const int depth = static_cast<int>(p_.k) - first, lane = static_cast<int>(threadIdx.x % 32);
    CopyTile<typename S::RowsX, kCopiedX>(stage + Warp() * kCopiedX * S::RowsX::kRowBytes,
                                          static_cast<const T*>(p_.x) + first, offset_x_, exist_x_,
                                          depth, aligned_);
    const int row = Warp() * kCopiedW + lane;  // of the tile of w
    const int columns = static_cast<int>(p_.n) - first_column_;
    char* const target = stage + S::kBytesX + Warp() * kCopiedW * S::RowsW::kRowBytes;
    const bool exists = lane < kCopiedW && row < (S::kIsTransposed ? columns : depth);
    const uint32_t exist = __ballot_sync(0xffffffffu, exists);
    const int64_t row_elements = S::kIsTransposed ? p_.k : p_.n;
    const int64_t corner =
        S::kIsTransposed ? first_column_ * p_.k + first : first * p_.n + first_column_;
    CopyTile<typename S::RowsW, kCopiedW>(target, w_ + corner, exists ? row * row_elements : 0,
                                          exist, S::kIsTransposed ? depth : columns, aligned_);
  }

 private:
  static __device__ __forceinline__ int Warp() { return static_cast<int>(threadIdx.x / 32); }

  const GroupedParams& p_;
  const T* const w_;
  const int first_column_;
  const bool aligned_;
  uint32_t exist_x_;
  int64_t offset_x_;
};

// sums += the product of the stage's tiles, the warp's quarter of it.
template <class S>
__device__ __forceinline__ void MultiplyStage(const char* stage, int warp_row, int warp_column,
                                              typename S::Sums& sums) {
  using M = typename S::M;
#pragma unroll
  for (int step = 0; step < S::kDepth / M::kStep; ++step) {
    typename M::A a[S::kWarpRows / 16];
#pragma unroll
    for (int i = 0; i < S::kWarpRows / 16; ++i) S::X::LoadA(a[i], stage, step, warp_row + 16 * i);
#pragma unroll
    for (int n = 0; n < S::kWarpColumns / 8; n += 2) {
      typename M::B b[2];
      S::W::LoadB(b, stage + S::kBytesX, step, warp_column + 8 * n);
#pragma unroll
      for (int i = 0; i < S::kWarpRows / 16; ++i) {
        M::MultiplyAdd(sums[i][n], a[i], b[0]);
        M::MultiplyAdd(sums[i][n + 1], a[i], b[1]);
      }
    }
  }
}

template <class S>
__device__ __forceinline__ void StoreTile(const GroupedParams& p, const Unit& unit, int warp_row,
                                          int first_column, const typename S::Sums& sums) {
  using T = typename S::T;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const T* const bias = p.bias ? static_cast<const T*>(p.bias) + unit.group * p.n : nullptr;
#pragma unroll
  for (int i = 0; i < 2 * (S::kWarpRows / 16); ++i) {
    const int row = warp_row + cuda::LaneRow(lane, i);
    if (row >= unit.rows) continue;
    const bool taken = RowTaken(p, unit.row + row) >= 0;
#pragma unroll
    for (int n = 0; n < S::kWarpColumns / 8; ++n) {
      const int column = first_column + cuda::LaneColumn(lane, n);
      const int columns = static_cast<int>(p.n) - column;
      float x = sums[i / 2][n][i % 2 * 2], y = sums[i / 2][n][i % 2 * 2 + 1];
      if (!taken) x = y = 0.0f;  // w may be infinite
      if (bias && taken && columns > 0) x += cuda::ToFloat(bias[column]);
      if (bias && taken && columns > 1) y += cuda::ToFloat(bias[column + 1]);
      StorePair(p.out, p.out_dtype, (unit.row + row) * p.n + column, columns, x, y);
    }
  }
}

// Grid: as many tiles as groups can need times tiles of columns.
template <class S>
__global__ void __launch_bounds__(S::kThreads, 2)
    GroupedTileKernel(const __grid_constant__ GroupedParams p, bool aligned) {
  extern __shared__ __align__(128) char shared[];
  __shared__ Unit found;
  const int column_tiles = (static_cast<int>(p.n) + S::kColumns - 1) / S::kColumns;
  if (threadIdx.x < 32) {
    const Unit unit =
        UnitFinder<EqualTiles<S::kRows>, kTilesTogether>(p.groups, column_tiles).Find(blockIdx.x);
    if (threadIdx.x == 0) found = unit;
  }
  __syncthreads();
  const Unit unit = found;
  const int first_column = unit.column_tile * S::kColumns;
  if (unit.group < 0) {
    ClearRows(p, unit, first_column, S::kColumns);
    return;
  }
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int warp_row = warp / 2 * S::kWarpRows, warp_column = warp % 2 * S::kWarpColumns;
  const TileStream<S> stream(p, unit, aligned);
  typename S::Sums sums = {};
  Pipeline<kTileStages>(
      (static_cast<int>(p.k) + S::kDepth - 1) / S::kDepth,
      [&](int stage, int i) { stream.Load(shared + stage * S::kStageBytes, i * S::kDepth); },
      [&](int stage) {
        AddStage<S::kDType>(sums, [&](typename S::Sums& part) {
          MultiplyStage<S>(shared + stage * S::kStageBytes, warp_row, warp_column, part);
        });
      });
  StoreTile<S>(p, unit, warp_row, first_column + warp_column, sums);
}

template <class S>
inline const cuda::Kernel kTileKernel("GroupedTileKernel",
                                      reinterpret_cast<const void*>(&GroupedTileKernel<S>),
                                      S::kSharedBytes);

template <class S>
Status LaunchTiles(const GroupedParams& p, const CudaContext& context) {
  const int64_t column_tiles = CeilDiv<int64_t>(p.n, S::kColumns);
  const int64_t bytes = sizeof(typename S::T);
  const bool aligned = cuda::AllAligned16(p.k * bytes, p.x, p.w) && (p.n * bytes) % 16 == 0 &&
                       p.x_rows * p.k * bytes < int64_t{1} << 36;  // offsets in CopyRows
  const cuda::LaunchConfig config{{MostTiles(p.m(), p.groups.count, S::kRows) * column_tiles},
                                  dim3(S::kThreads),
                                  S::kSharedBytes};
  return cuda::Launch(context, kTileKernel<S>, config, p, aligned);
}

}  // namespace intarsia::matmul
