// fp8 to f16, four numbers at a time. f16 holds every fp8 number exactly, NaN included.
#pragma once
#include <cuda_fp16.h>

#include <cstdint>

#include "src/core/dtype.h"

namespace intarsia::cuda {

// Bytes 1 and 3 of e4m3 as f16, in integer arithmetic (after Marlin's dequantization; IST-DASLab
// 2024). With its bits where f16 has them, a number is 2^-8 of what it was, subnormal ones, too,
// since f16's exponent has a bias of 15 and e4m3's of 7. `nan` has bit 7 of a byte set if that
// byte is NaN, which comes out as 480: one more bit of the exponent makes it f16's NaN.
__device__ __forceinline__ uint32_t OddE4M3ToF16(uint32_t x, uint32_t nan) {
  uint32_t r = (x & 0x80008000u) | (x >> 1 & 0x3f803f80u);
  asm("mul.rn.f16x2 %0, %0, %1;\n" : "+r"(r) : "r"(0x5c005c00u));
  return r | (nan & 0x80008000u) >> 2;
}

// `low` becomes bytes 0 and 1 of x, `high` bytes 2 and 3, the lower one in the lower half.
template <DType kType>
__device__ __forceinline__ void Fp8NeighborsToF16(uint32_t x, uint32_t& low, uint32_t& high);

// Bytes 0 and 1 of e4m3 as f16.
__device__ __forceinline__ uint32_t E4M3PairToF16(uint32_t x) {
#if __CUDA_ARCH__ >= 890
  uint32_t pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;\n" : "=r"(pair) : "h"(static_cast<uint16_t>(x)));
  return pair;
#else
  x = (x & 0xffu) << 8 | (x & 0xff00u) << 16;
  return OddE4M3ToF16(x, (x & 0x7f007f00u) + 0x01000100u);
#endif
}

// `even` becomes bytes 0 and 2 of x, `odd` bytes 1 and 3, the lower one in the lower half.
template <DType kType>
__device__ __forceinline__ void Fp8ToF16(uint32_t x, uint32_t& even, uint32_t& odd) {
  if constexpr (kType == DType::kF8E5M2) {
    even = x << 8 & 0xff00ff00u;  // the upper half of an f16
    odd = x & 0xff00ff00u;
  } else {
    static_assert(kType == DType::kF8E4M3);
#if __CUDA_ARCH__ >= 890
    Fp8NeighborsToF16<kType>(__byte_perm(x, 0, 0x3120), even, odd);
#else
    const uint32_t nan = (x & 0x7f7f7f7fu) + 0x01010101u;
    even = OddE4M3ToF16(x << 8, nan << 8);
    odd = OddE4M3ToF16(x, nan);
#endif
  }
}

template <DType kType>
__device__ __forceinline__ void Fp8NeighborsToF16(uint32_t x, uint32_t& low, uint32_t& high) {
  if constexpr (kType == DType::kF8E5M2) {
    low = __byte_perm(x, 0, 0x1404);  // to the upper halves
    high = __byte_perm(x, 0, 0x3424);
  } else {
#if __CUDA_ARCH__ >= 890
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, low;\ncvt.rn.f16x2.e4m3x2 %1, high;\n}\n"
        : "=r"(low), "=r"(high)
        : "r"(x));
#else
    Fp8ToF16<kType>(__byte_perm(x, 0, 0x3120), low, high);
#endif
  }
}

}  // namespace intarsia::cuda
