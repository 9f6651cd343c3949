// Tiles of matrices in shared memory, and fragments of them for the tensor cores.
#pragma once
#include "src/core/cuda/copy.cuh"
#include "src/core/cuda/mma.cuh"
#include "src/core/cuda/swizzle.cuh"

namespace intarsia::matmul {

// Copies kCount rows of `columns` elements to shared memory, by one warp; CopyRows (copy.cuh) says
// what lanes give. Rows that are not aligned may have any length.
template <class Rows, int kCount, class T>
__device__ __forceinline__ void CopyTile(char* target, const T* source, int64_t offset,
                                         uint32_t exist, int columns, bool aligned) {
  if (aligned) {
    cuda::CopyRows<Rows, kCount>(target, source, offset, exist, columns, true);
    return;
  }
  constexpr int kParts = Rows::kRowBytes / static_cast<int>(8 * sizeof(T));
  for (int i = static_cast<int>(threadIdx.x % 32); i < kCount * kParts; i += 32) {
    const int row = i / kParts, column = i % kParts * 8;
    const T* const from = source + __shfl_sync(0xffffffffu, offset, row) + column;
    cuda::Eight<T> values;
#pragma unroll
    for (int j = 0; j < 8; ++j)
      values.at[j] =
          (exist >> row & 1) && column + j < columns ? from[j] : cuda::FromFloat<T>(0.0f);
    cuda::StoreEight<Rows>(target, row, column, values);
  }
}

// Fragments of a matrix that lies in shared memory with the sum along its rows: [sum, m] for A,
// [sum, n] for B. `tile`: its first byte; `step`: which kStep rows; `column`: the first one, a
// multiple of 16.
template <DType kType, class Rows>
struct AcrossRows {
  using M = cuda::Mma<kType>;

  static __device__ __forceinline__ void LoadA(typename M::A& a, const char* tile, int step,
                                               int column) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    if constexpr (kType == DType::kF32) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        Split(At(tile, step * M::kStep + lane % 4 + i / 2 * 4, column + lane / 4 + i % 2 * 8),
              a.big[i], a.small[i]);
    } else {
      const uint32_t address = cuda::SharedAddress(tile) + cuda::LaneOffsetB<Rows>(lane);
      cuda::LdMatrix4Transposed(
          a.r, Rows::AtStep(address, column / 16) + step * M::kStep * Rows::kRowBytes);
    }
  }
  // b[j]: columns 8 * j on.
  static __device__ __forceinline__ void LoadB(typename M::B (&b)[2], const char* tile, int step,
                                               int column) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    if constexpr (kType == DType::kF32) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        Split(At(tile, step * M::kStep + lane % 4 + i % 2 * 4, column + lane / 4 + i / 2 * 8),
              b[i / 2].big[i % 2], b[i / 2].small[i % 2]);
    } else {
      const uint32_t address =
          cuda::SharedAddress(tile) + M::template LaneOffsetTransposed<Rows>(lane);
      M::template LoadTransposed<Rows>(
          b, Rows::AtStep(address, column / 16) + step * M::kStep * Rows::kRowBytes);
    }
  }

 private:
  static __device__ __forceinline__ float At(const char* tile, int row, int column) {
    return *reinterpret_cast<const float*>(tile + Rows::Offset(row, column / 4) + column % 4 * 4);
  }
  static __device__ __forceinline__ void Split(float x, uint32_t& big, uint32_t& small) {
    big = cuda::ToTf32(x);
    small = cuda::ToTf32(x - __uint_as_float(big));
  }
};

// The same for one with the sum within its rows: [m, sum], [n, sum]. `row`: the first one.
template <DType kType, class Rows>
struct AlongRows {
  using M = cuda::Mma<kType>;

  static __device__ __forceinline__ void LoadA(typename M::A& a, const char* tile, int step,
                                               int row) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const uint32_t address = cuda::SharedAddress(tile) + cuda::LaneOffsetA<Rows>(lane);
    M::LoadA(a, Rows::AtStep(address, step) + row * Rows::kRowBytes);
  }
  static __device__ __forceinline__ void LoadB(typename M::B (&b)[2], const char* tile, int step,
                                               int row) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const uint32_t address = cuda::SharedAddress(tile) + cuda::LaneOffsetB<Rows>(lane);
    M::LoadB(b, Rows::AtStep(address, step) + row * Rows::kRowBytes);
  }
};

// The stages of a CTA's pipeline: load(stage, i) asks for part i of the sum, multiply(stage) adds
// its product, for all i < count.
template <int kStages, class Load, class Multiply>
__device__ __forceinline__ void Pipeline(int count, Load load, Multiply multiply) {
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < count) load(i, i);
    cuda::CpAsyncCommit();
  }
  for (int i = 0, stage = 0; i < count; ++i) {
    cuda::CpAsyncWait<kStages - 2>();
    __syncthreads();  // part i is here, and nobody reads part i - 1 any more
    const int ahead = i + kStages - 1, free_stage = stage == 0 ? kStages - 1 : stage - 1;
    if (ahead < count) load(free_stage, ahead);
    cuda::CpAsyncCommit();
    multiply(stage);
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  cuda::CpAsyncWait<0>();
}

// sums += what add(part) adds to a part. A tensor core cuts off what does not fit into a sum, where
// f32 arithmetic rounds. So for f32 it sums over one stage only, and the stages are added here.
template <DType kType, int kRows, int kColumns, class Add>
__device__ __forceinline__ void AddStage(float (&sums)[kRows][kColumns][4], Add add) {
  if constexpr (kType != DType::kF32) {
    add(sums);
  } else {
    float part[kRows][kColumns][4] = {};
    add(part);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][n][j] += part[i][n][j];
      }
    }
  }
}

}  // namespace intarsia::matmul
