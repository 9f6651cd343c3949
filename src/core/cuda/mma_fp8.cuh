// Products with K and V in fp8, by the tensor cores' f16: it holds every fp8 number exactly, and
// K and V become f16 on their way from shared memory to the fragments. Q is made f16 when it is
// loaded, times a power of two that keeps it within f16's range.
//
// ldmatrix moves units of 32 bits, which are four columns of fp8, where an f16 fragment wants two.
// So columns (of a product over d) and blocks of columns (of O) are taken in another order: lane c
// of a row's four has columns 4 c ... 4 c + 3 of 16, where f16 would give it 2 c, 2 c + 1, 2 c + 8
// and 2 c + 9.
#pragma once
#include "src/core/cuda/eight.cuh"
#include "src/core/cuda/fp8.cuh"
#include "src/core/cuda/mma.cuh"

namespace intarsia::cuda {

template <DType kFp8>
struct Fp8Mma : Mma<DType::kF16> {
  using Key = uint8_t;

  // b[j]: 16 columns, a unit, of keys 8 * j ... 8 * j + 7.
  static constexpr int kKeyBlocks = 4;
  static constexpr int kKeyUnits = 1;
  template <class Rows>
  static __device__ __forceinline__ int LaneOffsetKeys(int lane) {
    return Rows::Offset(lane, 0);
  }
  static __device__ __forceinline__ void LoadB(B (&b)[4], uint32_t address) {
    uint32_t r[4];
    LdMatrix4(r, address);
#pragma unroll
    for (int j = 0; j < 4; ++j) Fp8ToF16<kFp8>(r[j], b[j].r[0], b[j].r[1]);
  }
  // To the order of columns that LoadB gives K: columns column ... column + 7, a multiple of 8, of
  // a row of Q.
  template <class Rows>
  static __device__ __forceinline__ void StoreQuery(char* tile, int row, int column,
                                                    const Eight<float>& q) {
    const int unit = column / 16 * 2, byte = column % 16;
    const auto store = [&](int first) {
      *reinterpret_cast<uint2*>(tile + Rows::Offset(row, unit + first) + byte) = {
          Pack(q.at[first], q.at[first + 2]), Pack(q.at[first + 4], q.at[first + 6])};
    };
    store(0);
    store(1);
  }

  // b[2 * j], b[2 * j + 1]: 16 keys, and the even and the odd ones of columns 16 * j ... 16 * j +
  // 15: a transposed unit of 32 bits has two columns of each of two keys.
  static constexpr int kTransposedSteps = 1;
  static constexpr int kValueBlocks = 4;
  static constexpr int kLaneColumns = 4;
  template <class Rows>
  static __device__ __forceinline__ void LoadTransposed(B (&b)[4], uint32_t address) {
    uint32_t r[4];
    LdMatrix4Transposed(r, address);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      Fp8ToF16<kFp8>(r[j], b[j / 2 * 2].r[j % 2], b[j / 2 * 2 + 1].r[j % 2]);
  }
};
template <>
struct Mma<DType::kF8E4M3> : Fp8Mma<DType::kF8E4M3> {};
template <>
struct Mma<DType::kF8E5M2> : Fp8Mma<DType::kF8E5M2> {};

// What rows of q are to be multiplied by before they become f16: the power of two that brings the
// largest finite one near 2^14. `largest` has its bits.
__device__ __forceinline__ float QueryScaleOf(uint32_t largest) {
  const int exponent = static_cast<int>(largest >> 23);
  return exponent == 0 ? 1.0f : __uint_as_float(min(127 + 127 + 14 - exponent, 254) << 23);
}

// The larger of `largest` and the bits of q's largest finite number.
__device__ __forceinline__ uint32_t LargestBits(const Eight<float>& q, uint32_t largest) {
#pragma unroll
  for (float x : q.at) {
    const uint32_t bits = __float_as_uint(x) & 0x7fffffffu;  // ordered as the numbers are
    if (bits < 0x7f800000u) largest = max(largest, bits);
  }
  return largest;
}

// The same of two bf16 at a time, in each half of a word, from 0 on. With one more in its exponent
// a number that is not finite is a negative integer, and so not the largest.
__device__ __forceinline__ uint32_t LargestOfPairs(uint32_t pair, uint32_t largest) {
  return __vmaxs2((pair & 0x7fff7fffu) + 0x00800080u, largest);
}
// The bits of the largest number then.
__device__ __forceinline__ uint32_t LargestBits(uint32_t largest_of_pairs) {
  const uint32_t half = max(largest_of_pairs >> 16, largest_of_pairs & 0xffffu);
  return (max(half, 0x80u) - 0x80u) << 16;
}
__device__ __forceinline__ uint32_t PairToF16(uint32_t bf16_pair, float factor) {
  const __half2 pair = __floats2half2_rn(__uint_as_float(bf16_pair << 16) * factor,
                                         __uint_as_float(bf16_pair & 0xffff0000u) * factor);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}

// Whether every number of the type is one of f16's.
__device__ __forceinline__ bool FitsF16(DType dtype) {
  return dtype != DType::kBF16 && dtype != DType::kF32;
}

// QueryScaleOf of kRows rows. `load` gives columns column ... column + 7 of a row, zeros where
// there are none; all lanes of a warp call it together.
template <int kRows, int kD, class Load>
__device__ __forceinline__ float QueryScale(DType dtype, const Load& load) {
  if (FitsF16(dtype)) return 1.0f;
  uint32_t largest = 0;
#pragma unroll 8
  for (int i = threadIdx.x % 32; i < kRows * kD / 8; i += 32)
    largest = LargestBits(load(i / (kD / 8), i % (kD / 8) * 8), largest);
  return QueryScaleOf(__reduce_max_sync(0xffffffffu, largest));
}

}  // namespace intarsia::cuda
