// Products of one warp on the tensor cores, from tiles in shared memory, the same code for all
// dtypes.
//
// Mma<kType>, for K and V of that type, multiplies in steps of 32 bytes of a row of Q: 16 elements
// of 16 bits (m16n8k16), or 8 of f32 (m16n8k8 in tf32). Seen as bytes the fragments of both
// instructions are alike, so ldmatrix serves f32 too. mma_fp8.cuh has fp8. Fragments: A is 16 rows
// x one step, B one step x 8 columns, C 16 x 8 in f32, where lane i holds
//   c[0], c[1]: row i / 4,     columns 2 * (i % 4) and the next
//   c[2], c[3]: row i / 4 + 8, the same columns          (PTX ISA, "mma.m16n8k16", "mma.m16n8k8")
#pragma once
#include "src/core/cuda/ptx.cuh"
#include "src/core/cuda/vec.cuh"

namespace intarsia::cuda {

// The row of a lane's c[2 * r], and the column of its c[0] in the n-th of fragments side by side.
__device__ __forceinline__ int LaneRow(int lane, int r) { return lane / 4 + 8 * r; }
__device__ __forceinline__ int LaneColumn(int lane, int n) { return lane % 4 * 2 + 8 * n; }

// Where a lane's address points, in the first step of a tile, for each kind of fragment.
template <class Rows>
__device__ __forceinline__ int LaneOffsetA(int lane) {
  return Rows::Offset(lane % 16, lane / 16);
}
template <class Rows>
__device__ __forceinline__ int LaneOffsetB(int lane) {
  return Rows::Offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
}

// Which blocks of 8 keys, or columns of V, one load of B fragments gives, and where the next ones
// lie; the same for all types but fp8.
struct MmaBlocks {
  static constexpr int kKeyBlocks = 2;
  static constexpr int kKeyUnits = 2;  // of a row of K, to the next step
  template <class Rows>
  static __device__ __forceinline__ int LaneOffsetKeys(int lane) {
    return LaneOffsetB<Rows>(lane);
  }
  static constexpr int kValueBlocks = 2;
  // A lane's columns of a row of kLaneColumns / 2 successive C fragments of O lie next to each
  // other, those of successive lanes, too.
  static constexpr int kLaneColumns = 2;
};

template <DType kType>
struct Mma : MmaBlocks {
  static constexpr DType kQuery = kType;  // of Q and P
  using T = DeviceT<kType>;
  using Key = T;  // of K and V
  static_assert(sizeof(T) == 2);
  static constexpr int kStep = 16;         // elements of a step
  static constexpr int kScoresOfStep = 2;  // C fragments that make one A fragment
  struct A {
    uint32_t r[4];
  };
  struct B {
    uint32_t r[2];
  };

  static __device__ __forceinline__ void LoadA(A& a, uint32_t address) { LdMatrix4(a.r, address); }

  // b[j]: the step of rows 8 * j ... 8 * j + 7 of a tile, as columns: for a product with its
  // transpose.
  static __device__ __forceinline__ void LoadB(B (&b)[2], uint32_t address) {
    uint32_t r[4];
    LdMatrix4(r, address);
    b[0] = {r[0], r[1]};
    b[1] = {r[2], r[3]};
  }

  // b[j]: kStep rows of a tile and its columns 8 * j ... 8 * j + 7. Sixteen columns on is
  // kTransposedSteps of AtStep.
  static constexpr int kTransposedSteps = 1;
  template <class Rows>
  static __device__ __forceinline__ int LaneOffsetTransposed(int lane) {
    return Rows::Offset(lane % 16, lane / 16);
  }
  template <class Rows>
  static __device__ __forceinline__ void LoadTransposed(B (&b)[2], uint32_t address) {
    uint32_t r[4];
    LdMatrix4Transposed(r, address);
    b[0] = {r[0], r[1]};
    b[1] = {r[2], r[3]};
  }

  // The A fragment whose columns are those of two C fragments: the layouts agree.
  static __device__ __forceinline__ void FromScores(A& a, const float (*c)[4]) {
    a = {{Pack(c[0][0], c[0][1]), Pack(c[0][2], c[0][3]), Pack(c[1][0], c[1][1]),
          Pack(c[1][2], c[1][3])}};
  }

  // c += a b
  static __device__ __forceinline__ void MultiplyAdd(float (&c)[4], const A& a, const B& b) {
    if constexpr (kType == DType::kF16)
      MmaF16(c, a.r, b.r[0], b.r[1]);
    else
      MmaBF16(c, a.r, b.r[0], b.r[1]);
  }

  static __device__ __forceinline__ uint32_t Pack(float low, float high) {
    uint32_t r;
    if constexpr (kType == DType::kF16)
      asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
    else
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
    return r;
  }
};

// x as the sum of two tf32 numbers, which have 11 bits each.
__device__ __forceinline__ void SplitTf32(float x, uint32_t& big, uint32_t& small) {
  big = ToTf32(x);
  small = ToTf32(x - __uint_as_float(big));
}

// f32: each operand is the sum of two tf32 numbers, x = big + small, and the product of the two
// small ones is dropped. Three products instead of one keep about 21 bits (CUTLASS, example 27,
// "3xTF32").
template <>
struct Mma<DType::kF32> : MmaBlocks {
  static constexpr DType kQuery = DType::kF32;
  using T = float;
  using Key = float;
  static constexpr int kStep = 8;
  static constexpr int kScoresOfStep = 1;
  struct A {
    uint32_t big[4], small[4];
  };
  struct B {
    uint32_t big[2], small[2];
  };

  static __device__ __forceinline__ void LoadA(A& a, uint32_t address) {
    uint32_t r[4];
    LdMatrix4(r, address);
#pragma unroll
    for (int i = 0; i < 4; ++i) SplitTf32(__uint_as_float(r[i]), a.big[i], a.small[i]);
  }
  static __device__ __forceinline__ void LoadB(B (&b)[2], uint32_t address) {
    uint32_t r[4];
    LdMatrix4(r, address);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      SplitTf32(__uint_as_float(r[i]), b[i / 2].big[i % 2], b[i / 2].small[i % 2]);
  }

  // A sum over keys may take them in any order, so slots k and k + 4 of the instruction are keys 2k
  // and 2k + 1: then an A fragment is a C fragment with its middle swapped, and no lane needs
  // another's part.
  static constexpr int kTransposedSteps = 2;
  template <class Rows>
  static __device__ __forceinline__ int LaneOffsetTransposed(int lane) {
    return Rows::Offset(lane % 4 * 2, lane / 16) + lane / 4 % 4 * 4;
  }
  template <class Rows>
  static __device__ __forceinline__ void LoadTransposed(B (&b)[2], uint32_t address) {
    static_assert(Rows::kMask == 7);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t even = Rows::AtStep(address, j);
      const uint32_t odd = (even ^ 16) + Rows::kRowBytes;
      SplitTf32(LoadShared(even), b[j].big[0], b[j].small[0]);
      SplitTf32(LoadShared(odd), b[j].big[1], b[j].small[1]);
    }
  }
  static __device__ __forceinline__ void FromScores(A& a, const float (*c)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) SplitTf32(c[0][i % 2 * 2 + i / 2], a.big[i], a.small[i]);
  }

  static __device__ __forceinline__ void MultiplyAdd(float (&c)[4], const A& a, const B& b) {
    MmaTf32(c, a.small, b.big[0], b.big[1]);
    MmaTf32(c, a.big, b.small[0], b.small[1]);
    MmaTf32(c, a.big, b.big[0], b.big[1]);
  }

 private:
  static __device__ __forceinline__ float LoadShared(uint32_t address) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(x) : "r"(address));
    return x;
  }
};

}  // namespace intarsia::cuda
