// Codes in the registers of a lane that are wgmma's A, of rows of w. With c = lane % 4 a lane has
// columns 2c, 2c + 1, 2c + 8 and 2c + 9 of 16: byte c of the words of two neighboring lines.
#pragma once
#include "src/matmul/cuda/codes.cuh"

namespace intarsia::matmul::sm90 {

// A value that the compiler keeps, and does not compute again in a loop.
__device__ __forceinline__ int Kept(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// Numbers are kUnit times what codes stand for, or that times a scale.
template <Format kFormat, DType kType>
class LanePairs {
 public:
  static constexpr float kUnit = CountedSteps<kFormat, kType>::kUnit;

  __device__ __forceinline__ LanePairs(uint32_t opaque_zero, int c)
      : steps_(opaque_zero), bytes_(static_cast<uint32_t>(Kept((c | (4 + c) << 4) * 0x101))) {}

  // The pairs of two words of a row. bias: none, or CountedSteps::BiasOf.
  template <class... Bias>
  __device__ __forceinline__ void Decode(uint32_t first, uint32_t second, uint32_t& low,
                                         uint32_t& high, Bias... bias) const {
    const uint32_t twice = __byte_perm(first, second, bytes_);
    low = steps_.Pair(twice, bias...), high = steps_.Pair(twice >> 8, bias...);
  }

 private:
  const CountedSteps<kFormat, kType> steps_;
  const uint32_t bytes_;
};

// Of bf16, whose exponents end three bits above a byte.
template <>
class LanePairs<Format::kE2M1, DType::kBF16> {
 public:
  __device__ __forceinline__ LanePairs(uint32_t, int c)
      : bytes_(static_cast<uint32_t>(Kept(c * 0x11 | (4 + c) * 0x1100))) {}

  // scale: decoding::E2M1Scale.
  __device__ __forceinline__ void Decode(uint32_t first, uint32_t second, uint32_t& low,
                                         uint32_t& high, uint32_t scale) const {
    low = Pair(first, scale), high = Pair(second, scale);
  }

 private:
  // Both codes in bits 4 to 7 of their half, from where one product takes the sign to bit 15 and
  // the others to bits 6 to 8.
  __device__ __forceinline__ uint32_t Pair(uint32_t word, uint32_t scale) const {
    const uint32_t codes = __byte_perm(word << 4, word, bytes_) & 0x00f000f0u;
    return decoding::MultiplyPairs<DType::kBF16>(codes * 0x104u & 0x81c081c0u, scale);
  }

  const uint32_t bytes_;
};

}  // namespace intarsia::matmul::sm90
