// Bits of codes as pairs of f16 or bf16, by products alone.
#pragma once
#include <cstring>

#include "src/core/cuda/ptx.cuh"
#include "src/core/cuda/vec.cuh"
#include "src/matmul/quantized.h"

namespace intarsia::matmul {

// x y + z of pairs of kType.
template <DType kType>
__device__ __forceinline__ uint32_t MultiplyAddPairs(uint32_t x, uint32_t y, uint32_t z) {
  return kType == DType::kF16 ? cuda::FmaF16(x, y, z) : cuda::FmaBF16(x, y, z);
}
template <DType kType>
__device__ __forceinline__ uint32_t PairBits(float low, float high) {
  cuda::PairOf<cuda::DeviceT<kType>> pair;
  pair.x = cuda::FromFloat<cuda::DeviceT<kType>>(low);
  pair.y = cuda::FromFloat<cuda::DeviceT<kType>>(high);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}
// Both numbers of a pair of kType.
template <DType kType>
__device__ __forceinline__ float2 FloatsOf(uint32_t bits) {
  if constexpr (kType == DType::kBF16)
    return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
  __half2 pair;
  memcpy(&pair, &bits, sizeof pair);
  return __half22float2(pair);
}

// The greatest power of two of a type, whose smallest step, times that, is kStepUnit.
template <DType kType>
inline constexpr float kGreatestPower = kType == DType::kF16 ? 0x1p15f : 0x1p127f;
template <DType kType>
inline constexpr float kStepUnit = kType == DType::kF16 ? 0x1p-9f : 0x1p-6f;

// Pairs of codes' lower 4 bits where they lie, or of bytes. Bits of a number whose exponent is 0 or
// 1 count its smallest steps, bits 4 to 7 sixteen at a time: one operation scales both halves of a
// pair, each by its power of two, and takes the format's bias with it. It makes kUnit times what
// codes stand for.
template <Format kFormat, DType kType>
class CountedSteps {
 public:
  static constexpr float kUnit = kStepUnit<kType>;
  __device__ __forceinline__ explicit CountedSteps(uint32_t opaque_zero)
      : up_(PairBits<kType>(kMost, kMost / 16) + opaque_zero),
        swapped_(PairBits<kType>(kMost / 16, kMost) + opaque_zero),
        bytes_(PairBits<kType>(kMost, kMost) + opaque_zero) {}

  // Codes in the lowest bits of the lower half and in bits 4 to 7 of the upper half.
  __device__ __forceinline__ uint32_t Pair(uint32_t x, uint32_t bias = FormatBias()) const {
    return MultiplyAddPairs<kType>(x & 0x00f0000fu, up_, bias);
  }
  // In bits 4 to 7 of the lower half and in the lowest bits of the upper half.
  __device__ __forceinline__ uint32_t SwappedPair(uint32_t x, uint32_t bias = FormatBias()) const {
    return MultiplyAddPairs<kType>(x & 0x000f00f0u, swapped_, bias);
  }
  // In the lowest 8 bits of both halves.
  __device__ __forceinline__ uint32_t BytePair(uint32_t x) const {
    return MultiplyAddPairs<kType>(x, bytes_, FormatBias());
  }
  // What takes `point` from both codes of a pair: exactly, since differences of codes and of
  // unsigned bytes have 8 bits and a sign.
  static __device__ __forceinline__ uint32_t BiasOf(float point) {
    return PairBits<kType>(-point * kUnit, -point * kUnit);
  }

 private:
  static constexpr float kMost = kGreatestPower<kType>;

  static __device__ __forceinline__ uint32_t FormatBias() {
    switch (kFormat) {
      case Format::kU4B8:
        return BiasOf(8.0f);
      case Format::kU5B16:
        return BiasOf(16.0f);
      case Format::kU6B32:
        return BiasOf(32.0f);
      case Format::kI8:
        return BiasOf(128.0f);
      default:
        return 0;
    }
  }
  uint32_t up_, swapped_, bytes_;
};

// Adds bits 4 and above of codes to pairs of the lower 4, which are CountedSteps'.
template <DType kType>
class UpperSteps {
 public:
  __device__ __forceinline__ explicit UpperSteps(uint32_t opaque_zero)
      : bit4_(PairBits<kType>(kMost, kMost) + opaque_zero),
        bit12_(PairBits<kType>(kOfBit12, kOfBit12) + opaque_zero),
        two_bits_(PairBits<kType>(kMost, kMost / 4) + opaque_zero) {}

  // Bit 4 of each half.
  __device__ __forceinline__ uint32_t AddBit4(uint32_t bits, uint32_t pair) const {
    return MultiplyAddPairs<kType>(bits & 0x00100010u, bit4_, pair);
  }
  // Bit 12 of each half, which is one of the exponent's: a power of two.
  __device__ __forceinline__ uint32_t AddBit12(uint32_t bits, uint32_t pair) const {
    return MultiplyAddPairs<kType>(bits & 0x10001000u, bit12_, pair);
  }
  // Bits 4 and 5 of the lower half, 6 and 7 of the upper half.
  __device__ __forceinline__ uint32_t AddTwoBits(uint32_t bits, uint32_t pair) const {
    return MultiplyAddPairs<kType>(bits & 0x00c00030u, two_bits_, pair);
  }

 private:
  static constexpr float kMost = kGreatestPower<kType>;
  static constexpr float kBit12 = kType == DType::kF16 ? 0x1p-11f : 0x1p-95f;  // as a number
  static constexpr float kOfBit12 = 16.0f * kStepUnit<kType> / kBit12;

  uint32_t bit4_, bit12_, two_bits_;
};

// The same for pairs whose numbers are of different columns: bits of a first and of a second column
// follow each other from bit 4 of each half on.
template <int kBits, DType kType>
class CrossedUpperSteps {
 public:
  __device__ __forceinline__ explicit CrossedUpperSteps(uint32_t opaque_zero)
      : up_(PairBits<kType>(kMost, kMost / kApart) + opaque_zero),
        swapped_(PairBits<kType>(kMost / kApart, kMost) + opaque_zero) {}

  // Of the first column in the lower half and the second one in the upper half.
  __device__ __forceinline__ uint32_t Add(uint32_t bits, uint32_t pair) const {
    return MultiplyAddPairs<kType>(bits & (kFirst | kSecond << 16), up_, pair);
  }
  // The other way round.
  __device__ __forceinline__ uint32_t AddSwapped(uint32_t bits, uint32_t pair) const {
    return MultiplyAddPairs<kType>(bits & (kSecond | kFirst << 16), swapped_, pair);
  }

 private:
  static constexpr float kMost = kGreatestPower<kType>;
  static constexpr uint32_t kApart = 1u << (kBits - 4);
  static constexpr uint32_t kFirst = (kApart - 1) << 4, kSecond = kFirst * kApart;

  uint32_t up_, swapped_;
};

}  // namespace intarsia::matmul
