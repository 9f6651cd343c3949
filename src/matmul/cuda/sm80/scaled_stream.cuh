// A product of codes (scaled.h) for few rows of x, bound by the memory that holds w. A CTA has up
// to 16 rows of x and kColumns rows of w, its warps share the sum: they take its blocks in turn.
//
// w is the A operand of m16n8k32 and comes from memory right into its registers, 16 bytes a lane,
// each once; x is B. Which elements of the sum a lane's places stand for is free, as long as A and
// B agree. A step is 64 columns: with c = lane % 4 and r = lane / 4, a lane has columns 16 c ...
// 16 c + 15 of rows 8 i + r of w, and of rows 8 j + r of x.
#pragma once
#include "src/core/cuda/launch.h"
#include "src/matmul/cuda/rows.cuh"
#include "src/matmul/cuda/scaled_factors.cuh"
#include "src/matmul/cuda/sm80/scaled.h"
#include "src/matmul/cuda/sm80/scaled_mma.cuh"

namespace intarsia::matmul {

template <DType kType, int kRowBlocksEach>
struct ScaledStream {
  static constexpr DType kDType = kType;
  using Mma = CodeMma<kType>;
  static constexpr int kRowBlocks = kRowBlocksEach, kRows = 8 * kRowBlocks;  // of x
  static constexpr int kColumnPairs = 2, kColumns = 16 * kColumnPairs;       // rows of w
  static constexpr int kStep = 64, kSteps = kScaleBlock / kStep;
  static constexpr int kWarps = 8;
  static constexpr int kPitch = kColumns + 1;  // one more for the banks
  static constexpr int kSharedBytes = kWarps * kRows * kPitch * 4;
  template <class T>
  using Fragments = T[kColumnPairs][kRowBlocks][4];
};

// What a lane has of a step.
template <class S>
struct ScaledStep {
  uint4 w[2 * S::kColumnPairs], x[S::kRowBlocks];
};

// What a lane reads: its columns of its rows of w and of x, zeros where there are none.
template <class S>
class ScaledCodes {
 public:
  __device__ __forceinline__ ScaledCodes(const ScaledParams& p, int first_column, int first_row)
      : k_(static_cast<int>(p.k)) {
    const int lane = static_cast<int>(threadIdx.x % 32), r = lane / 4;
    at_ = lane % 4 * 16;
    columns_ = static_cast<int>(p.n) - first_column - r;
    rows_ = static_cast<int>(p.m) - first_row - r;
    w_ = static_cast<const uint8_t*>(p.w) + (first_column + r) * p.k + at_;
    x_ = static_cast<const uint8_t*>(p.x) + (first_row + r) * p.k + at_;
  }
  // Columns first ... first + kStep - 1.
  __device__ __forceinline__ void Load(int first, ScaledStep<S>& step) const {
    const bool exists = first + at_ < k_;
#pragma unroll
    for (int i = 0; i < 2 * S::kColumnPairs; ++i)
      step.w[i] = exists && 8 * i < columns_ ? cuda::LoadOnce16(w_ + int64_t{8} * i * k_ + first)
                                             : uint4{0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < S::kRowBlocks; ++j)
      step.x[j] = exists && 8 * j < rows_
                      ? *reinterpret_cast<const uint4*>(x_ + int64_t{8} * j * k_ + first)
                      : uint4{0, 0, 0, 0};
  }

 private:
  const int k_;
  int at_, columns_, rows_;
  const uint8_t *w_, *x_;
};

template <class S>
__device__ __forceinline__ void MultiplyStep(
    const ScaledStep<S>& step, typename S::template Fragments<typename S::Mma::Sum>& part) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < S::kColumnPairs; ++i) {
      const uint4 &low = step.w[2 * i], &high = step.w[2 * i + 1];
      const uint32_t a[4] = {cuda::WordOf(low, 2 * half), cuda::WordOf(high, 2 * half),
                             cuda::WordOf(low, 2 * half + 1), cuda::WordOf(high, 2 * half + 1)};
#pragma unroll
      for (int j = 0; j < S::kRowBlocks; ++j)
        S::Mma::MultiplyAdd(part[i][j], a, cuda::WordOf(step.x[j], 2 * half),
                            cuda::WordOf(step.x[j], 2 * half + 1));
    }
  }
}

// sums += factors of block b times part.
template <class S>
__device__ __forceinline__ void AddPart(
    const ScaledParams& p, int first_column, int first_row, int b,
    const typename S::template Fragments<typename S::Mma::Sum>& part,
    typename S::template Fragments<float>& sums) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float of_w = OfBlock(p.w_scales, first_column, b);
#pragma unroll
  for (int j = 0; j < S::kRowBlocks; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = min(first_row + 8 * j + lane % 4 * 2 + e, static_cast<int>(p.m) - 1);
      const float factor = of_w * OfBlock(p.x_scales, row, b);
#pragma unroll
      for (int i = 0; i < S::kColumnPairs; ++i) {
        sums[i][j][e] += factor * static_cast<float>(part[i][j][e]);
        sums[i][j][2 + e] += factor * static_cast<float>(part[i][j][2 + e]);
      }
    }
  }
}

// The sums of every kWarps-th block; the next step is in flight while one is multiplied.
template <class S>
__device__ __forceinline__ void StreamBlocks(const ScaledParams& p, int first_column, int first_row,
                                             int warp,
                                             typename S::template Fragments<float>& sums) {
  using Part = typename S::template Fragments<typename S::Mma::Sum>;
  const int blocks = static_cast<int>(p.blocks());
  const ScaledCodes<S> stream(p, first_column, first_row);
  ScaledStep<S> now, next;
  if (warp < blocks) stream.Load(warp * kScaleBlock, next);
  for (int b = warp; b < blocks; b += S::kWarps) {
    Part part = {};
#pragma unroll
    for (int i = 0; i < S::kSteps; ++i) {
      now = next;
      const int following = i + 1 < S::kSteps ? b : b + S::kWarps;
      if (following < blocks)
        stream.Load(following * kScaleBlock + (i + 1) % S::kSteps * S::kStep, next);
      MultiplyStep<S>(now, part);
    }
    AddPart<S>(p, first_column, first_row, b, part, sums);
  }
}

// Grid: tiles of rows of w, tiles of rows of x. k is a multiple of 16, and x and w aligned.
template <class S>
__global__ void __launch_bounds__(32 * S::kWarps, 2)
    ScaledStreamKernel(const __grid_constant__ ScaledParams p) {
  extern __shared__ float partial[];
  cuda::AwaitPrevious();
  cuda::LetNextBegin();
  const int first_column = static_cast<int>(blockIdx.x) * S::kColumns;
  const int first_row = static_cast<int>(blockIdx.y) * S::kRows;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  typename S::template Fragments<float> sums = {};
  StreamBlocks<S>(p, first_column, first_row, warp, sums);
#pragma unroll
  for (int i = 0; i < S::kColumnPairs; ++i) {
#pragma unroll
    for (int j = 0; j < S::kRowBlocks; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        partial[(warp * S::kRows + 8 * j + lane % 4 * 2 + e % 2) * S::kPitch + 16 * i + lane / 4 +
                e / 2 * 8] = sums[i][j][e];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < S::kRows * S::kColumns / 2; i += 32 * S::kWarps) {
    const int row = first_row + i / (S::kColumns / 2), in_tile = i % (S::kColumns / 2) * 2;
    const int column = first_column + in_tile, columns = static_cast<int>(p.n) - column;
    if (row >= p.m || columns <= 0) continue;
    float both[2] = {};
    for (int other = 0; other < S::kWarps; ++other) {  // in their order
      const float* const of_warp =
          partial + (other * S::kRows + row - first_row) * S::kPitch + in_tile;
      both[0] += of_warp[0], both[1] += of_warp[1];
    }
    const float of_row = OfAllBlocks(p.x_scales, row);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int of_pair = column + min(e, columns - 1);
      both[e] = both[e] * (of_row * OfAllBlocks(p.w_scales, of_pair)) + BiasAt(p, of_pair);
    }
    StorePair(p.out, p.out_dtype, row * p.n + column, columns, both[0], both[1]);
  }
}

template <class S>
inline const cuda::Kernel kScaledStreamKernel("ScaledStreamKernel",
                                              reinterpret_cast<const void*>(&ScaledStreamKernel<S>),
                                              S::kSharedBytes);

template <class S>
Status LaunchScaledStream(const ScaledParams& p, const CudaContext& context) {
  const cuda::LaunchConfig config{
      .grid = {CeilDiv<int64_t>(p.n, S::kColumns), CeilDiv<int64_t>(p.m, S::kRows)},
      .block = dim3(32 * S::kWarps),
      .shared_bytes = S::kSharedBytes,
      .overlaps_previous = true};
  return cuda::Launch(context, kScaledStreamKernel<S>, config, p);
}

template <DType kType>
Status LaunchScaledStreamOf(const ScaledParams& p, const CudaContext& context) {
  return p.m <= 8 ? LaunchScaledStream<ScaledStream<kType, 1>>(p, context)
                  : LaunchScaledStream<ScaledStream<kType, 2>>(p, context);
}

}  // namespace intarsia::matmul
