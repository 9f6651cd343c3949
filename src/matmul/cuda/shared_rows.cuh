// What products of few rows (row_of_codes.cuh) have in shared memory: x, and sums of warps.
#pragma once
#include "src/matmul/cuda/row_of_codes.h"

namespace intarsia::matmul {

// Where shared memory has columns of rows of x: pieces of 8, in the order of codes, and where they
// are needed the sums of each block, or of each unit at its first block. A last unit that has not
// all of its blocks begins with some of the unit before it, times 0: its own come last.
struct SharedRows {
  __device__ __forceinline__ SharedRows(char* shared, const RowOfCodesShape& shape)
      : pieces(reinterpret_cast<uint4*>(shared)),
        sums(reinterpret_cast<float*>(shared + shape.rows * shape.pitch() * kPieceBytes)),
        pitch(shape.pitch()),
        sum_pitch(shape.units * kUnitBlocks),
        whole(shape.blocks / kUnitBlocks * kUnitPieces),
        turn(-shape.blocks * kBlockPieces & (kUnitPieces - 1)) {}
  // Leaves out the first units, which are there.
  __device__ __forceinline__ void Skip(int units) {
    pieces += units * kUnitPieces, sums += units * kUnitBlocks;
  }
  __device__ __forceinline__ SharedRows Of(int row) const {
    SharedRows found = *this;
    found.pieces += row * pitch, found.sums += row * sum_pitch;
    return found;
  }
  // The first one that is there.
  __device__ __forceinline__ void BeginWith(int unit) { whole -= unit * kUnitPieces; }

  // Where a piece of x, or of the zeros up to a whole unit, is.
  __device__ __forceinline__ int PlaceOf(int piece) const {
    return piece < whole ? piece : whole + ((piece + turn) & (kUnitPieces - 1));
  }

  uint4* pieces;
  float* sums;
  int pitch, sum_pitch;  // of rows
  int whole, turn;       // pieces of whole units, and by how many those of the last one are turned
};

// The sums of a warp's tiles, from the lanes that have them: of one row of x, or of 8, one after
// the other.
template <int kTiles, int kSums>
__device__ __forceinline__ void StoreRowSums(const float2 (&sums)[kTiles],
                                             float (&to)[kTiles][kSums]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (lane % 4 != 0) return;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) reinterpret_cast<float2*>(to[t])[lane / 4] = sums[t];
}

template <int kTiles, int kSums>
__device__ __forceinline__ void StoreRowSums(const float4 (&sums)[kTiles],
                                             float (&to)[kTiles][kSums]) {
  constexpr int kRow = static_cast<int>(kTileRows) / 2;
  const int lane = static_cast<int>(threadIdx.x % 32), at = lane % 4 * 2 * kRow + lane / 4;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    auto* const pairs = reinterpret_cast<float2*>(to[t]);
    pairs[at] = {sums[t].x, sums[t].z}, pairs[at + kRow] = {sums[t].y, sums[t].w};
  }
}

}  // namespace intarsia::matmul
