// How the warps of split-KV decode get their tile of Q into shared memory.
#pragma once
#include "src/attention/cuda/sm80/decode_plain.cuh"
#include "src/attention/cuda/sm80/decode_schedule.cuh"
#include "src/attention/cuda/sm80/decode_tile.cuh"

namespace intarsia::attention::decode {

// Where a row of the tile lies in q; row 0 instead of one that does not exist.
__device__ __forceinline__ int64_t QueryOffset(const Params& p, const Sequence& sequence,
                                               const PieceTile& tile, int kv_head, int row) {
  if (row >= tile.rows) return 0;
  const RowPlace place = PlaceOf(p, sequence, kv_head, tile.first_row + row);
  return place.token * p.q_token_stride + place.head * p.q_head_stride;
}

// Asks for Q, each warp for some of its rows; a warp alone where they are not aligned. Where K and
// V are fp8 it is to be converted, and lies as in memory, one row each kD 16-bit elements;
// unaligned rows are not asked for.
template <class S>
__device__ __forceinline__ void StartQuery(const Params& p, const Sequence& sequence,
                                           const PieceTile& tile, int kv_head, uint32_t query,
                                           bool aligned) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = static_cast<int>(p.head_dim);
  if (!aligned) {
    if constexpr (!S::kFp8) {
      if (warp == 0)
        RowCopy<S>(QueryOffset(p, sequence, tile, kv_head, lane % kTileRows), (1u << tile.rows) - 1,
                   0)
            .Start(query, p.q, S::kType, d, false);
    }
    return;
  }
  constexpr int kWarpRows = kTileRows / S::kWarps;
  const int bytes = S::kFp8 ? IsFp8(p.dtype) ? 1 : 2 : static_cast<int>(sizeof(typename S::T));
#pragma unroll
  for (int i = lane / 8; i < kWarpRows; i += 4) {
    const int row = warp * kWarpRows + i;
    const char* const from =
        static_cast<const char*>(p.q) + QueryOffset(p, sequence, tile, kv_head, row) * bytes;
#pragma unroll
    for (int unit = lane % 8; unit < S::QueryRows::kUnits; unit += 8) {
      const int to =
          S::kFp8 ? row * S::QueryRows::kRowBytes + 16 * unit : S::QueryRows::Offset(row, unit);
      cuda::CpAsync16(query + to, from + 16 * unit, row < tile.rows && 16 * unit < d * bytes);
    }
  }
}

// A number for each warp and row, at the same place for whoever asks: first the warps' largest
// queries, later their lse.
template <class S>
__device__ __forceinline__ auto& WarpNumbers() {
  __shared__ float numbers[S::kWarps][kTileRows];
  return numbers;
}

// Makes Q f16 where it lies, each warp some of its rows; returns what scores are to be multiplied
// by for it. Bit i of `rows`: whether there is row i; others become zeros.
template <class S>
__device__ __forceinline__ float ConvertQuery(const Params& p, int64_t offset, uint32_t rows,
                                              char* query, bool aligned) {
  constexpr int kWarpRows = kTileRows / S::kWarps, kEights = S::kD / 8;  // of a row
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32;
  // Of 16 bits in plain calls.
  const DType dtype = S::kPlain && p.dtype != DType::kF16 ? DType::kBF16 : p.dtype;
  const int pitch = S::QueryRows::kRowBytes / (IsFp8(dtype) ? 1 : 2);
  constexpr int kOwn = kWarpRows * kEights / 32;
  static_assert(32 % kEights == 0 && kOwn > 0);
  cuda::Eight<float> own[kOwn];
  uint32_t largest = 0;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const int row = warp * kWarpRows + (lane + 32 * j) / kEights, column = lane % kEights * 8;
    const int64_t in_memory = __shfl_sync(0xffffffffu, offset, row) + column;
    own[j] = {};
    if ((rows >> row & 1) && column < p.head_dim)
      own[j] = aligned ? cuda::LoadEightFloats(query, dtype, row * pitch + column, true)
                       : cuda::LoadEightFloats(p.q, dtype, in_memory, false);
    largest = cuda::LargestBits(own[j], largest);
  }
  auto& numbers = WarpNumbers<S>();
  numbers[warp][0] = __uint_as_float(__reduce_max_sync(0xffffffffu, largest));
  __syncthreads();  // all have read Q
  float factor = 1.0f;
  if (!cuda::FitsF16(dtype)) {
    float all = 0.0f;
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) all = fmaxf(all, numbers[w][0]);
    factor = cuda::QueryScaleOf(__float_as_uint(all));
  }
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
#pragma unroll
    for (float& x : own[j].at) x *= factor;
    S::M::template StoreQuery<typename S::QueryRows>(
        query, warp * kWarpRows + (lane + 32 * j) / kEights, lane % kEights * 8, own[j]);
  }
  return 1.0f / factor;
}

}  // namespace intarsia::attention::decode
