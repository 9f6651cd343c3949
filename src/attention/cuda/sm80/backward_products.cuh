// The products of the gradient's kernel (backward.cuh), by one warp on the tensor cores.
#pragma once
#include "src/attention/cuda/sm80/backward_tile.cuh"

namespace intarsia::attention::backward {

// c = A B' for the lane's addresses of kBlocks x 16 rows of A and kTiles x 8 rows of B.
template <class S, int kBlocks, int kTiles>
__device__ __forceinline__ void Multiply(float (&c)[kBlocks][kTiles][4], uint32_t a_rows,
                                         uint32_t b_rows) {
  using M = typename S::M;
  using Rows = typename S::Rows;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) c[block][n][i] = 0.0f;
    }
  }
#pragma unroll
  for (int step = 0; step < S::kSteps; ++step) {
    typename M::A a[kBlocks];
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
      M::LoadA(a[block], Rows::AtStep(a_rows, step) + 16 * block * Rows::kRowBytes);
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      typename M::B b[2];
      M::LoadB(b, Rows::AtStep(b_rows, step) + 8 * n * Rows::kRowBytes);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        M::MultiplyAdd(c[block][n], a[block], b[0]);
        M::MultiplyAdd(c[block][n + 1], a[block], b[1]);
      }
    }
  }
}

// sums += A B for A [keys, rows] in registers and the lane's address of B [rows, columns]. A tensor
// core cuts off what does not fit into a sum (prefill_tile.cuh), so f32 is summed over a tile only.
template <class S>
__device__ __forceinline__ void AddProduct(typename S::Sums& sums, const typename S::Scores& s,
                                           uint32_t b_rows) {
  using M = typename S::M;
  using Rows = typename S::Rows;
  constexpr int kSteps = S::kTileRows / M::kStep;
  const auto load = [&](typename M::B(&b)[2], int step, int n) {
    M::template LoadTransposed<Rows>(
        b, Rows::AtStep(b_rows, n / 2 * M::kTransposedSteps) + step * M::kStep * Rows::kRowBytes);
  };
  typename M::A a[kSteps][S::kKeyBlocks];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int block = 0; block < S::kKeyBlocks; ++block)
      M::FromScores(a[step][block], &s[block][step * M::kScoresOfStep]);
  }
#pragma unroll
  for (int n = 0; n < S::kD / 8; n += 2) {
    float tile[S::kKeyBlocks][2][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      typename M::B b[2];
      load(b, step, n);
#pragma unroll
      for (int block = 0; block < S::kKeyBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          M::MultiplyAdd(S::kF32 ? tile[block][i] : sums[block][n + i], a[step][block], b[i]);
      }
    }
    if constexpr (S::kF32) {
#pragma unroll
      for (int block = 0; block < S::kKeyBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[block][n + i / 4][i % 4] += tile[block][i / 4][i % 4];
      }
    }
  }
}

// The A fragment that is the transpose of kStep rows of a tile and 16 of its columns.
template <class S>
__device__ __forceinline__ int LaneOffsetTransposedA(int lane) {
  using Rows = typename S::ScoreRows;
  // In f32 slots k and k + 4 are rows 2k and 2k + 1, as in Mma<kF32>::LoadTransposed.
  if constexpr (S::kF32) return Rows::Offset(lane % 4 * 2, lane / 16) + lane / 4 % 4 * 4;
  return cuda::LaneOffsetB<Rows>(lane);
}
template <class S>
__device__ __forceinline__ void LoadTransposedA(typename S::M::A& a, uint32_t address) {
  using Rows = typename S::ScoreRows;
  if constexpr (S::kF32) {
    float c[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t even = Rows::AtStep(address, i);
      const uint32_t odd = (Rows::kMask == 7 ? even ^ 16 : even) + Rows::kRowBytes;
      asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(c[2 * i]) : "r"(even));
      asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(c[2 * i + 1]) : "r"(odd));
    }
    S::M::FromScores(a, &c);  // which is such a transpose: c[2 * r + i] is row r * 8, slot i
  } else {
    cuda::LdMatrix4Transposed(a.r, address);
  }
}

// The warp's part of dQ = dS K, over the keys of the tile; `scores` and `keys` are the lane's
// addresses in dS, of the warp's rows, and in K.
template <class S>
__device__ __forceinline__ void MultiplyKeys(float (&dq)[S::kQueryBlocks][S::kQueryColumns / 8][4],
                                             uint32_t scores, uint32_t keys, int first_column) {
  using M = typename S::M;
  using Rows = typename S::Rows;
  constexpr int kBlockSteps = 16 * static_cast<int>(sizeof(typename S::T)) / 32;
#pragma unroll
  for (int step = 0; step < S::kTileKeys / M::kStep; ++step) {
    typename M::A a[S::kQueryBlocks];
#pragma unroll
    for (int block = 0; block < S::kQueryBlocks; ++block)
      LoadTransposedA<S>(a[block], S::ScoreRows::AtStep(scores, block * kBlockSteps) +
                                       step * M::kStep * S::ScoreRows::kRowBytes);
#pragma unroll
    for (int n = 0; n < S::kQueryColumns / 8; n += 2) {
      typename M::B b[2];
      M::template LoadTransposed<Rows>(
          b, Rows::AtStep(keys, (first_column + 8 * n) / 16 * M::kTransposedSteps) +
                 step * M::kStep * Rows::kRowBytes);
#pragma unroll
      for (int block = 0; block < S::kQueryBlocks; ++block) {
        M::MultiplyAdd(dq[block][n], a[block], b[0]);
        M::MultiplyAdd(dq[block][n + 1], a[block], b[1]);
      }
    }
  }
}

}  // namespace intarsia::attention::backward
