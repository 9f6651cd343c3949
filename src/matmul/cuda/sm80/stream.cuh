// Grouped products for few rows of a group, bound by the memory that holds the weights:
//   out[rows of a group, columns] = x[rows taken, :] w[group] + bias.
// A CTA has up to kStreamRows rows of a group and 64 columns; its warps share the sum. Weights are
// the A operand of m16n8k16, [columns, sum], and come from memory right into its registers, 16
// bytes a lane, each once. Rows of x are B, [sum, rows]. Which elements of the sum, and which
// columns, a lane's places in a fragment stand for is free, as long as A, B and C agree (PTX ISA,
// "Matrix Fragments for mma.m16n8k16"), so no element moves between lanes. With c = lane % 4, r =
// lane / 4:
//   w [k, n]: a step is 16 of k. Lane has rows 4c ... 4c + 3 of it, each with columns 8r ... 8r
//   + 7.
//     Product j: A's row r is column 8r + 2j, row r + 8 is 8r + 2j + 1.
//   w [n, k]: a step is 32 of k. Lane has columns 16j + r and 16j + r + 8, each with 8c ... 8c + 7.
//     Product j: A's row r is column 16j + r. A step makes two products of it.
//   w [n, k] with a gate and an up for each result: instead of columns 16j + r and 16j + r + 8,
//   gate
//     and up of result 8j + r.
// Warps take steps in turn, so that they read neighboring memory at the same time.
#pragma once
#include "src/activation/gating.cuh"
#include "src/core/cuda/launch.h"
#include "src/core/cuda/mma.cuh"
#include "src/matmul/cuda/choose.h"
#include "src/matmul/cuda/rows.cuh"

namespace intarsia::matmul {

template <DType kType, bool kTransposed, bool kGated = false>
struct StreamConfig {
  static_assert(kTransposed || !kGated);
  static constexpr bool kIsGated = kGated;
  static constexpr int kResults = kGated ? kStreamColumns / 2 : kStreamColumns;  // of a CTA
  static constexpr DType kDType = kType;
  using M = cuda::Mma<kType>;
  using T = typename M::T;
  static constexpr bool kIsTransposed = kTransposed;
  static constexpr int kRows = kStreamRows, kRowBlocks = kRows / 8;
  static constexpr int kStep = 32;  // elements of the sum that a warp takes at a time
  static constexpr int kMostWarps = 8;
  static constexpr int kMostSharedBytes = StreamSharedBytes(kMostWarps);
  // Of a warp: sums[j][block][...] is product j's C for eight rows.
  using Sums = float[4][kRowBlocks][4];
};

// What a lane has of kStep elements of the sum.
template <class S>
struct StreamPart {
  uint4 w[8];
  uint4 x[S::kRowBlocks];
};

template <class S>
class WeightStream {
 public:
  using T = typename S::T;

  __device__ __forceinline__ WeightStream(const GroupedParams& p, const Unit& unit)
      : k_(static_cast<int>(p.k)), n_(static_cast<int>(p.columns())) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    c_ = lane % 4;
    column_ = unit.column_tile * S::kResults + (S::kIsTransposed ? lane / 4 : lane / 4 * 8);
    w_ = static_cast<const T*>(p.w) + unit.group * p.k * p.n;
    if constexpr (S::kIsGated) {
      w_ += (p.gating.in_turn ? 2 * column_ : column_) * p.k + 8 * c_;
      apart_ = p.gating.in_turn ? p.k : n_ * p.k;
      step_ = p.gating.in_turn ? 16 * p.k : 8 * p.k;
    } else {
      w_ += S::kIsTransposed ? column_ * p.k + 8 * c_ : column_ + 4 * c_ * p.n;
    }
#pragma unroll
    for (int i = 0; i < S::kRowBlocks; ++i) {
      const int row = 8 * i + lane / 4;
      const int64_t taken = row < unit.rows ? RowTaken(p, unit.row + row) : int64_t{-1};
      x_[i] = taken < 0 ? nullptr : static_cast<const T*>(p.x) + taken * p.k;
    }
  }

  // Elements first ... first + kStep - 1 of the sum; those from k on are zeros.
  __device__ __forceinline__ void LoadWeights(int first, StreamPart<S>& part) const {
    constexpr uint4 kZeros = {0, 0, 0, 0};
    if constexpr (S::kIsGated) {
      const bool exists = first + 8 * c_ < k_;
#pragma unroll
      for (int i = 0; i < 8; ++i)  // gates and ups of results 8 (i / 2) on
        part.w[i] = exists && column_ + i / 2 * 8 < n_
                        ? cuda::LoadOnce16(w_ + i / 2 * step_ + i % 2 * apart_ + first)
                        : kZeros;
    } else if constexpr (S::kIsTransposed) {
      const bool exists = first + 8 * c_ < k_;
#pragma unroll
      for (int i = 0; i < 8; ++i)  // columns 8i on
        part.w[i] = exists && column_ + 8 * i < n_
                        ? cuda::LoadOnce16(w_ + int64_t{8} * i * k_ + first)
                        : kZeros;
    } else {
      const bool exists = column_ < n_;
#pragma unroll
      for (int i = 0; i < 8; ++i) {  // two times 16 of the sum
        const int row = first + i / 4 * 16 + i % 4;
        part.w[i] = exists && row + 4 * c_ < k_ ? cuda::LoadOnce16(w_ + int64_t{row} * n_) : kZeros;
      }
    }
  }
  __device__ __forceinline__ void LoadRows(int first, StreamPart<S>& part) const {
    constexpr uint4 kZeros = {0, 0, 0, 0};
    if constexpr (S::kIsTransposed) {
      const bool exists = first + 8 * c_ < k_;
#pragma unroll
      for (int i = 0; i < S::kRowBlocks; ++i)
        part.x[i] =
            exists && x_[i] ? *reinterpret_cast<const uint4*>(x_[i] + first + 8 * c_) : kZeros;
    } else {
#pragma unroll
      for (int i = 0; i < S::kRowBlocks; ++i) {
        uint2 x[2] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = first + 16 * half + 4 * c_;
          if (x_[i] && at < k_) x[half] = *reinterpret_cast<const uint2*>(x_[i] + at);
        }
        part.x[i] = {x[0].x, x[0].y, x[1].x, x[1].y};
      }
    }
  }

 private:
  const int k_, n_;
  int c_, column_;
  int64_t apart_ = 0, step_ = 0;  // from a gate to its up, and to the gate 8 results on
  const T* w_;
  const T* x_[S::kRowBlocks];  // null: there is no such row
};

// sums += the part's products: half 0 and 1 of its elements.
template <class S>
__device__ __forceinline__ void MultiplyPart(const StreamPart<S>& part, typename S::Sums& sums) {
  using M = typename S::M;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      typename M::A a;
      if constexpr (S::kIsTransposed) {
        const uint4 &low = part.w[2 * j], &high = part.w[2 * j + 1];
        a = {{cuda::WordOf(low, 2 * half), cuda::WordOf(high, 2 * half),
              cuda::WordOf(low, 2 * half + 1), cuda::WordOf(high, 2 * half + 1)}};
      } else {
        const uint4* const w = part.w + 4 * half;
        a = {{__byte_perm(cuda::WordOf(w[0], j), cuda::WordOf(w[1], j), 0x5410),
              __byte_perm(cuda::WordOf(w[0], j), cuda::WordOf(w[1], j), 0x7632),
              __byte_perm(cuda::WordOf(w[2], j), cuda::WordOf(w[3], j), 0x5410),
              __byte_perm(cuda::WordOf(w[2], j), cuda::WordOf(w[3], j), 0x7632)}};
      }
#pragma unroll
      for (int i = 0; i < S::kRowBlocks; ++i) {
        const typename M::B b = {
            {cuda::WordOf(part.x[i], 2 * half), cuda::WordOf(part.x[i], 2 * half + 1)}};
        M::MultiplyAdd(sums[j][i], a, b);
      }
    }
  }
}

// The sums of every stride-th element of k from `begin` on, kStep of them each; the next part is in
// flight while one is multiplied. `awaits`: rows come from the kernel before this one.
template <class S>
__device__ __forceinline__ void StreamWeights(const WeightStream<S>& stream, int begin, int end,
                                              int stride, bool awaits, typename S::Sums& sums) {
  StreamPart<S> now, next;
  if (begin < end) stream.LoadWeights(begin, now);
  if (awaits) cuda::AwaitPrevious();
  if (begin >= end) return;
  stream.LoadRows(begin, now);
  for (int first = begin; first < end; first += stride) {
    if (first + stride < end) {
      stream.LoadWeights(first + stride, next);
      stream.LoadRows(first + stride, next);
    }
    MultiplyPart<S>(now, sums);
    now = next;
  }
}

// Puts a warp's sums into shared memory: [row, column], one float more a row.
template <class S>
__device__ __forceinline__ void StorePart(float* shared, const typename S::Sums& sums) {
  const int lane = static_cast<int>(threadIdx.x % 32), r = lane / 4, c = lane % 4;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int column = S::kIsTransposed ? 16 * j + r : 8 * r + 2 * j;
#pragma unroll
    for (int i = 0; i < S::kRowBlocks; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        shared[(8 * i + 2 * c + e % 2) * (kStreamColumns + 1) + column +
               e / 2 * (S::kIsTransposed ? 8 : 1)] = sums[j][i][e];
    }
  }
}

// The results, from the sums of all warps, added in their order.
template <class S>
__device__ __forceinline__ void StoreResults(const GroupedParams& p, const Unit& unit,
                                             const float* shared, int warps) {
  using T = typename S::T;
  const int first_column = unit.column_tile * kStreamColumns;
  const T* const bias = p.bias ? static_cast<const T*>(p.bias) + unit.group * p.n : nullptr;
  for (int i = static_cast<int>(threadIdx.x); i < unit.rows * kStreamColumns / 2;
       i += static_cast<int>(blockDim.x)) {
    const int row = i / (kStreamColumns / 2), in_tile = i % (kStreamColumns / 2) * 2;
    const int column = first_column + in_tile, columns = static_cast<int>(p.n) - column;
    if (columns <= 0) continue;
    float x = 0.0f, y = 0.0f;
    for (int warp = 0; warp < warps; ++warp) {
      const float* const of_warp =
          shared + (warp * S::kRows + row) * (kStreamColumns + 1) + in_tile;
      x += of_warp[0], y += of_warp[1];
    }
    if (RowTaken(p, unit.row + row) < 0)
      x = y = 0.0f;  // w may be infinite
    else if (bias)
      x += cuda::ToFloat(bias[column]), y += cuda::ToFloat(bias[column + 1]);
    StorePair(p.out, p.out_dtype, (unit.row + row) * p.n + column, columns, x, y);
  }
}

// The same, with gates and ups: eight columns of gates, then their ups.
template <class S>
__device__ __forceinline__ void StoreGated(const GroupedParams& p, const Unit& unit,
                                           const float* shared, int warps) {
  using T = typename S::T;
  const int n = static_cast<int>(p.columns());
  const T* const bias = p.bias ? static_cast<const T*>(p.bias) + unit.group * p.n : nullptr;
  for (int i = static_cast<int>(threadIdx.x); i < unit.rows * S::kResults;
       i += static_cast<int>(blockDim.x)) {
    const int row = i / S::kResults, in_tile = i % S::kResults;
    const int column = unit.column_tile * S::kResults + in_tile;
    if (column >= n) continue;
    const bool takes = RowTaken(p, unit.row + row) >= 0;
    float both[2];
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      float sum = 0.0f;
      for (int warp = 0; warp < warps; ++warp)
        sum += shared[(warp * S::kRows + row) * (kStreamColumns + 1) + in_tile / 8 * 16 + part * 8 +
                      in_tile % 8];
      if (!takes)
        sum = 0.0f;  // w may be infinite
      else if (bias)
        sum += cuda::ToFloat(bias[p.gating.in_turn ? 2 * column + part : part * n + column]);
      both[part] = cuda::RoundTo<T>(sum);
    }
    static_cast<T*>(p.out)[int64_t{unit.row + row} * n + column] =
        cuda::FromFloat<T>(cuda::Gate<T>(p.gating, both[0], both[1]));
  }
}

// Grid: as many tiles as groups can need times tiles of columns. n and k are multiples of 8, and x
// and w aligned.
template <class S>
__global__ void __launch_bounds__(32 * S::kMostWarps, S::kRowBlocks > 1 ? 1 : 2)
    GroupedStreamKernel(const __grid_constant__ GroupedParams p) {
  extern __shared__ float partial[];
  __shared__ Unit found;
  const int column_tiles = (static_cast<int>(p.columns()) + S::kResults - 1) / S::kResults;
  if (p.await != Await::kRows) cuda::AwaitPrevious();
  cuda::LetNextBegin();
  if (threadIdx.x < 32) {
    const Unit unit =
        UnitFinder<EqualTiles<S::kRows>, kTilesTogether>(p.groups, column_tiles).Find(blockIdx.x);
    if (threadIdx.x == 0) found = unit;
  }
  __syncthreads();
  const Unit unit = found;
  if (unit.group < 0) {
    if (p.await == Await::kRows) cuda::AwaitPrevious();
    ClearRows(p, unit, unit.column_tile * S::kResults, S::kResults);
    return;
  }
  const int warp = static_cast<int>(threadIdx.x / 32), warps = static_cast<int>(blockDim.x / 32);
  const int steps = (static_cast<int>(p.k) + S::kStep - 1) / S::kStep;
  typename S::Sums sums = {};
  StreamWeights<S>(WeightStream<S>(p, unit), warp * S::kStep, steps * S::kStep, warps * S::kStep,
                   p.await == Await::kRows, sums);
  StorePart<S>(partial + warp * S::kRows * (kStreamColumns + 1), sums);
  __syncthreads();
  if constexpr (S::kIsGated)
    StoreGated<S>(p, unit, partial, warps);
  else
    StoreResults<S>(p, unit, partial, warps);
}

template <class S>
inline const cuda::Kernel kStreamKernel("GroupedStreamKernel",
                                        reinterpret_cast<const void*>(&GroupedStreamKernel<S>),
                                        S::kMostSharedBytes);

template <class S>
Status LaunchStream(const GroupedParams& p, const CudaContext& context) {
  const int warps = StreamWarps(p, *context.device);
  const cuda::LaunchConfig config{.grid = {MostTiles(p.m(), p.groups.count, S::kRows) *
                                           CeilDiv<int64_t>(p.columns(), S::kResults)},
                                  .block = dim3(static_cast<unsigned>(32 * warps)),
                                  .shared_bytes = StreamSharedBytes(warps),
                                  .overlaps_previous = p.await != Await::kNothing};
  return cuda::Launch(context, kStreamKernel<S>, config, p);
}

}  // namespace intarsia::matmul
