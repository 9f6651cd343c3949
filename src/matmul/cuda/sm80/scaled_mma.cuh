// Products of codes of 8 bits by the tensor cores of every GPU.
#pragma once
#include "src/core/cuda/fp8.cuh"
#include "src/core/cuda/ptx.cuh"
#include "src/core/dtype.h"

namespace intarsia::matmul {

// c[16 x 8] += a[16 x 32] b[32 x 8]. As bytes the fragments are those of m16n8k16, so ldmatrix
// serves them. PTX ISA, "Matrix Fragments for mma.m16n8k32".
template <DType kType>
struct CodeMma;

template <>
struct CodeMma<DType::kI8> {
  using Sum = int32_t;
  static __device__ __forceinline__ void MultiplyAdd(Sum (&c)[4], const uint32_t (&a)[4],
                                                     uint32_t b0, uint32_t b1) {
    cuda::MmaS8(c, a, b0, b1);
  }
};

// GPUs before compute capability 8.9 multiply f16, which holds every code exactly. The sum is over
// even bytes of each word, then odd ones, in a and b alike.
template <>
struct CodeMma<DType::kF8E4M3> {
  using Sum = float;
  static __device__ __forceinline__ void MultiplyAdd(Sum (&c)[4], const uint32_t (&a)[4],
                                                     uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 890
    cuda::MmaE4M3(c, a, b0, b1);
#else
    const auto half = [&](uint32_t a0, uint32_t a1, uint32_t b) {
      uint32_t wide[4], wide_b[2];
      cuda::Fp8ToF16<DType::kF8E4M3>(a0, wide[0], wide[2]);
      cuda::Fp8ToF16<DType::kF8E4M3>(a1, wide[1], wide[3]);
      cuda::Fp8ToF16<DType::kF8E4M3>(b, wide_b[0], wide_b[1]);
      cuda::MmaF16(c, wide, wide_b[0], wide_b[1]);
    };
    half(a[0], a[1], b0);
    half(a[2], a[3], b1);
#endif
  }
};

}  // namespace intarsia::matmul
