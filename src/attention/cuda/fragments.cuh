// What attention does to scores in C fragments of the tensor cores (mma.cuh), which a lane has in
// its registers: blocks of 16 rows x 8 * kBlocks keys, where s[block][n][2 * r + i] is the score of
// row LaneRow(lane, 2 * block + r) and key LaneColumn(lane, n) + i. A row belongs to four
// neighboring lanes.
#pragma once
#include "src/attention/cuda/scores.cuh"
#include "src/core/cuda/mma.cuh"

namespace intarsia::attention {

// What the lanes of a row make of one number each, in all of them.
__device__ __forceinline__ float RowMaximum(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float RowSum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// What to subtract from logarithms whose maximum is m. For a row that has seen nothing -inf - -inf
// would be NaN, and any other number gives 2^-inf = 0.
__device__ __forceinline__ float BaseOf(float m) { return m == -INFINITY ? 0.0f : m; }

// The bits from i on.
template <class Bits>
__device__ __forceinline__ Bits BitsFrom(int i) {
  constexpr int kBits = 8 * sizeof(Bits);
  return i >= kBits ? Bits{0} : static_cast<Bits>(~Bits{0} << max(i, 0));
}

// s = -inf where the row does not see the key, or the key does not exist: bit j of `existing` is
// key first_key + j.
template <int kRowBlocks, int kBlocks, class Bits>
__device__ __forceinline__ void Mask(float (&s)[kRowBlocks][kBlocks][4], const Params& p,
                                     const Sequence& sequence, int first_row, int first_key,
                                     Bits existing) {
  static_assert(8 * kBlocks <= 8 * sizeof(Bits));
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int block = 0; block < kRowBlocks; ++block) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Range keys = VisibleKeysOfChunk(
          p, sequence, TokenOfRow(p, first_row + cuda::LaneRow(lane, 2 * block + r)));
      const Bits seen =
          existing & BitsFrom<Bits>(keys.begin - first_key) & ~BitsFrom<Bits>(keys.end - first_key);
      const Bits lane_seen = seen >> cuda::LaneColumn(lane, 0);
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (!(lane_seen >> (8 * n + i) & 1)) s[block][n][2 * r + i] = -INFINITY;
        }
      }
    }
  }
}

template <int kRowBlocks, int kBlocks>
__device__ __forceinline__ void SubtractAlibi(float (&s)[kRowBlocks][kBlocks][4], const Params& p,
                                              const Sequence& sequence, int kv_head, int first_row,
                                              int first_key) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int block = 0; block < kRowBlocks; ++block) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Alibi alibi(p, sequence, kv_head, first_row + cuda::LaneRow(lane, 2 * block + r));
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          s[block][n][2 * r + i] -= alibi.At(first_key + cuda::LaneColumn(lane, n) + i);
      }
    }
  }
}

}  // namespace intarsia::attention
