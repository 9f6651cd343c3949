// Rows of a dense [rows, n] array shared among the threads of blocks: a row a threadIdx.y, whose
// blockDim.x threads lie in one warp or make up the whole block. RowBlock (launch.h) says how many.
#pragma once
#include <cstdint>

namespace intarsia::cuda {

struct Plus {
  static constexpr float kNeutral = 0.0f;
  __device__ __forceinline__ float operator()(float x, float y) const { return x + y; }
};
// Of numbers >= 0, leaving out NaN.
struct Larger {
  static constexpr float kNeutral = 0.0f;
  __device__ __forceinline__ float operator()(float x, float y) const { return fmaxf(x, y); }
};

// Reduce over the threads of a row, given to all of them. Every thread of the block must come here,
// those of rows that do not exist too; for each Reduce once between two barriers of the block,
// since it keeps shared memory.
template <class Reduce>
__device__ __forceinline__ float ReduceRow(float x) {
  constexpr Reduce kReduce{};
  const auto across = [&](float value, unsigned width) {
    for (unsigned offset = width / 2; offset > 0; offset /= 2)
      value = kReduce(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
  };
  if (blockDim.x <= 32) return across(x, blockDim.x);
  __shared__ float warps[32];
  x = across(x, 32);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  const unsigned lane = threadIdx.x % 32;
  return across(lane < blockDim.x / 32 ? warps[lane] : Reduce::kNeutral, 32);
}

// Of a row that a whole warp has.
__device__ __forceinline__ float SumOfWarp(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

}  // namespace intarsia::cuda
