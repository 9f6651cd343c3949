// Codes of weights (matmul/quantized.h) as operands of the tensor cores. Every number that a code
// stands for is one of f16 and of bf16, so decoding is exact.
#pragma once
#include "src/core/cuda/fp8.cuh"
#include "src/core/cuda/ptx.cuh"
#include "src/core/cuda/vec.cuh"
#include "src/matmul/cuda/counted_steps.cuh"
#include "src/matmul/quantized.h"

namespace intarsia::matmul {

// f32's x is the sum of three bf16 numbers, each multiplied by codes in bf16.
constexpr DType CodeType(DType x) { return x == DType::kF16 ? DType::kF16 : DType::kBF16; }

// 2^exponent.
constexpr INTARSIA_HOST_DEVICE float PowerOfTwo(int exponent) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(127 + exponent) << 23);
}

// Four neighboring codes of a row. Of 8 bits: `low` has them. Else two bytes of `low` have their
// lower 4 bits, and the lowest bits of `high` the others, code by code.
struct FourCodes {
  uint32_t low, high;
};

namespace decoding {

template <DType kType>
__device__ __forceinline__ uint32_t Subtract(uint32_t x, float y) {
  using Pair = cuda::PairOf<cuda::DeviceT<kType>>;
  Pair a;
  memcpy(&a, &x, sizeof a);
  Pair b;
  b.x = b.y = cuda::FromFloat<cuda::DeviceT<kType>>(y);
  a = __hsub2(a, b);
  memcpy(&x, &a, sizeof x);
  return x;
}
template <DType kType>
__device__ __forceinline__ uint32_t MultiplyPairs(uint32_t x, uint32_t y) {
  cuda::PairOf<cuda::DeviceT<kType>> a, b;
  memcpy(&a, &x, sizeof a);
  memcpy(&b, &y, sizeof b);
  a = __hmul2(a, b);
  memcpy(&x, &a, sizeof x);
  return x;
}
// A pair of f16 as one of kType, which holds both numbers exactly.
template <DType kType>
__device__ __forceinline__ uint32_t FromF16(uint32_t x) {
  if constexpr (kType == DType::kF16) return x;
  __half2 a;
  memcpy(&a, &x, sizeof a);
  const __nv_bfloat162 b = __float22bfloat162_rn(__half22float2(a));
  memcpy(&x, &b, sizeof x);
  return x;
}

// (x & mask) | ones, in one instruction: compilers make two where both are constants.
__device__ __forceinline__ uint32_t Masked(uint32_t x, uint32_t mask, uint32_t ones) {
  asm("lop3.b32 %0, %0, %1, %2, 0xea;\n" : "+r"(x) : "r"(mask), "r"(ones));
  return x;
}

inline constexpr uint32_t kE8M0One = 127;
// 2^(e - 127) times what the biases of e2m1 and of kType differ by, twice, where kType has that
// number and all multiples of e2m1's exactly: of bf16 up to e = 128, of f16 from 104 to 128.
template <DType kType>
__device__ __forceinline__ constexpr uint32_t E2M1Scale(uint32_t e) {
  return kType == DType::kF16 ? e * 0x4000400u - 98u * 0x4000400u : e * 0x800080u + 0x3f003f00u;
}

// Upper bits of codes 2j and 2j + 1, above the lower 4 of each half.
template <int kBits, int kPair>
__device__ __forceinline__ uint32_t UpperBits(uint32_t high) {
  if constexpr (kBits == 5)
    return (high << (4 - 2 * kPair) & 0x10u) | (high << (19 - 2 * kPair) & 0x100000u);
  if constexpr (kBits == 6)
    return (high << (4 - 4 * kPair) & 0x30u) | (high << (18 - 4 * kPair) & 0x300000u);
  return 0;
}

// Codes 2 kPair and 2 kPair + 1 of less than 8 bits; `shifted` is low >> 4. An integer in the
// lowest bits of a number's mantissa is its distance from 2^10 (f16) or 2^7 (bf16): one operation
// makes it a number and takes the bias with it (Kim et al., "Who Says Elephants Can't Run", 2022).
template <Format kFormat, DType kType, int kByte, int kPair, bool kBiased>
__device__ __forceinline__ uint32_t DecodePair(const FourCodes& codes, uint32_t shifted) {
  constexpr int kBits = static_cast<int>(BitsOf(kFormat)), kAt = kByte + kPair;
  constexpr bool kHalf = kType == DType::kF16;
  // Byte kAt of both: the lower half's lowest bits are one code, the upper half's the next.
  const uint32_t spread = __byte_perm(codes.low, shifted, kAt | (4 + kAt) << 8);
  if constexpr (kFormat == Format::kE2M1) {
    // Sign, exponent and mantissa where kType has them; what the biases differ by is a factor.
    constexpr int kShift = kHalf ? 9 : 6;
    const uint32_t bits = (spread << 12 & 0x80008000u) | (spread << kShift & 0x70007u << kShift);
    return MultiplyPairs<kType>(bits, E2M1Scale<kType>(kE8M0One));
  } else {
    constexpr uint32_t kOne = kHalf ? 0x64006400u : 0x43004300u;
    constexpr float kBias = kFormat == Format::kU4B8    ? 8.0f
                            : kFormat == Format::kU5B16 ? 16.0f
                            : kFormat == Format::kU6B32 ? 32.0f
                                                        : 0.0f;
    const uint32_t bits = Masked(spread, 0x000f000fu, kOne) | UpperBits<kBits, kPair>(codes.high);
    if constexpr (kBiased) return bits;
    return Subtract<kType>(bits, (kHalf ? 1024.0f : 128.0f) + kBias);
  }
}

}  // namespace decoding

// pairs[j]: the numbers of codes 2j, in the lower half, and 2j + 1. kByte: the first of low's
// bytes. kBiased: integers of less than 8 bits keep what the format and the mantissa add to them.
template <Format kFormat, DType kType, int kByte = 0, bool kBiased = false>
__device__ __forceinline__ void Decode(const FourCodes& codes, uint32_t (&pairs)[2]) {
  using namespace decoding;
  if constexpr (kFormat == Format::kE4M3) {
    uint32_t low, high;
    cuda::Fp8ToF16<DType::kF8E4M3>(__byte_perm(codes.low, 0, 0x3120), low, high);
    pairs[0] = FromF16<kType>(low), pairs[1] = FromF16<kType>(high);
  } else if constexpr (kFormat == Format::kI8) {
    const uint32_t biased = codes.low ^ 0x80808080u;  // plus 128
    constexpr uint32_t kOne = 0x64646464u;            // in the upper byte: 1024
    const uint32_t low = __byte_perm(biased, kOne, 0x4140);
    const uint32_t high = __byte_perm(biased, kOne, 0x4342);
    pairs[0] = FromF16<kType>(Subtract<DType::kF16>(low, 1152.0f));
    pairs[1] = FromF16<kType>(Subtract<DType::kF16>(high, 1152.0f));
  } else {
    const uint32_t shifted = codes.low >> 4;
    pairs[0] = DecodePair<kFormat, kType, kByte, 0, kBiased>(codes, shifted);
    pairs[1] = DecodePair<kFormat, kType, kByte, 1, kBiased>(codes, shifted);
  }
}

// 0, which the compiler does not know: it would put a constant into a register for each use.
__device__ __forceinline__ uint32_t OpaqueZero(const QuantizedParams& p) {
  return static_cast<uint32_t>(p.k >> 32);  // k is below 2^30
}

// A pointer that the compiler is not to compute again, as it would for each use in a loop. asm
// hides that it is global.
template <class Pointer>
__device__ __forceinline__ void KeepGlobal(Pointer& pointer) {
  asm volatile("" : "+l"(pointer));
#ifdef __CUDA_ARCH__
  __builtin_assume(__isGlobal(pointer));
#endif
}

// Codes of 8 bits as pairs. i8: bits 0 to 7 of a number count its smallest steps, as above.
template <Format kFormat, DType kType>
class ByteNumbers {
 public:
  static constexpr float kUnit = CountedSteps<kFormat, kType>::kUnit;
  __device__ __forceinline__ explicit ByteNumbers(uint32_t opaque_zero) : steps_(opaque_zero) {}

  // Codes 0 and 1, 2 and 3 of a word.
  __device__ __forceinline__ void Decode(uint32_t word, uint32_t& low, uint32_t& high) const {
    const uint32_t biased = word ^ 0x80808080u;  // plus 128
    low = steps_.BytePair(__byte_perm(biased, 0, 0x4140));
    high = steps_.BytePair(__byte_perm(biased, 0, 0x4342));
  }

 private:
  const CountedSteps<kFormat, kType> steps_;
};
template <DType kType>
class ByteNumbers<Format::kE4M3, kType> {
 public:
  static constexpr float kUnit = 1.0f;
  __device__ __forceinline__ explicit ByteNumbers(uint32_t) {}

  __device__ __forceinline__ void Decode(uint32_t word, uint32_t& low, uint32_t& high) const {
    uint32_t pairs[2];
    matmul::Decode<Format::kE4M3, kType>({word, 0}, pairs);
    low = pairs[0], high = pairs[1];
  }
};

// A word's eight 4-bit codes as four pairs, in whatever order is the cheapest. InOrder puts eight
// columns of x into it. Numbers are kUnit times what codes stand for. Codes of other sizes are not
// spread: of those there is kUnit alone.
template <Format kFormat, DType kType>
struct SpreadCodes {
  static constexpr float kUnit = 1.0f;
  __device__ __forceinline__ explicit SpreadCodes(uint32_t) {}
};

template <Format kFormat, DType kType>
  requires(kFormat == Format::kU4 || kFormat == Format::kU4B8)
class SpreadCodes<kFormat, kType> {
 public:
  static constexpr float kUnit = CountedSteps<kFormat, kType>::kUnit;
  __device__ __forceinline__ explicit SpreadCodes(uint32_t opaque_zero) : steps_(opaque_zero) {}

  // bias: none, or CountedSteps::BiasOf.
  template <class... Bias>
  __device__ __forceinline__ void Decode(uint32_t word, uint32_t (&pairs)[4], Bias... bias) const {
    pairs[0] = steps_.Pair(word, bias...), pairs[1] = steps_.SwappedPair(word, bias...);
    pairs[2] = steps_.Pair(word >> 8, bias...), pairs[3] = steps_.SwappedPair(word >> 8, bias...);
  }
  // Columns 0 and 5, 1 and 4, 2 and 7, 3 and 6.
  static __device__ __forceinline__ uint4 InOrder(const uint4& x) {
    return {__byte_perm(x.x, x.z, 0x7610), __byte_perm(x.x, x.z, 0x5432),
            __byte_perm(x.y, x.w, 0x7610), __byte_perm(x.y, x.w, 0x5432)};
  }

 private:
  CountedSteps<kFormat, kType> steps_;
};

template <DType kType>
class SpreadCodes<Format::kE2M1, kType> {
 public:
  static constexpr float kUnit = 1.0f;
  __device__ __forceinline__ explicit SpreadCodes(uint32_t) {}

  // scale: decoding::E2M1Scale.
  __device__ __forceinline__ void Decode(
      uint32_t word, uint32_t (&pairs)[4],
      uint32_t scale = decoding::E2M1Scale<kType>(decoding::kE8M0One)) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) pairs[j] = decoding::MultiplyPairs<kType>(Bits(word, j), scale);
  }
  // Pair j of a word, each times the power of two that the biases of both types differ by. The sign
  // goes from bit 3 of a code to bit 15, the others to where kType's exponent ends. In bf16 one
  // product moves all four: integer units are what kernels wait for, and it is not theirs.
  static __device__ __forceinline__ uint32_t Bits(uint32_t word, int j) {
    constexpr int kUp = kType == DType::kF16 ? 9 : 6;
    if constexpr (kType == DType::kBF16) {
      const uint32_t codes = (j < 2 ? word : word >> 8) & (j % 2 ? 0x00f000f0u : 0x000f000fu);
      return codes * (j % 2 ? 0x104u : 0x1040u) & (0x80008000u | 0x70007u << kUp);
    }
    const int up = kUp - 4 * j;
    const uint32_t size = up >= 0 ? word << up : word >> -up;
    return (word << (12 - 4 * j) & 0x80008000u) | (size & 0x70007u << kUp);
  }
  // Columns j and j + 4.
  static __device__ __forceinline__ uint4 InOrder(const uint4& x) {
    return {__byte_perm(x.x, x.z, 0x5410), __byte_perm(x.x, x.z, 0x7632),
            __byte_perm(x.y, x.w, 0x5410), __byte_perm(x.y, x.w, 0x7632)};
  }
};

// nvfp4, decoded: 2^kNvFp4Exponent q s for a code q and its scale s. q has 2 bits and s has 4, so
// that f16 and bf16 hold q s exactly. As they lie in bf16, e2m1's bits stand for 2^-126 q, and
// 2^126 s would overflow; in f16 it is 2^-14 q.
inline constexpr int kNvFp4Exponent = -9;
inline constexpr float kNvFp4Unit = PowerOfTwo(kNvFp4Exponent);

// What the bits of codes of rows 2r and 2r + 1 are multiplied by, in pairs. `both`: their scales.
template <DType kType>
__device__ __forceinline__ uint2 NvFp4Scales(uint32_t both) {
  const uint32_t halves = cuda::E4M3PairToF16(both);
  if constexpr (kType == DType::kF16) {
    constexpr uint32_t kOne = (14 + kNvFp4Exponent + 15) << 10;  // as f16
    const uint32_t scales = decoding::MultiplyPairs<DType::kF16>(halves, kOne * 0x10001u);
    return {__byte_perm(scales, 0, 0x1010), __byte_perm(scales, 0, 0x3232)};
  }
  const float2 scales = FloatsOf<DType::kF16>(halves);
  const auto twice = [](float scale) {  // its upper half is the number in bf16
    constexpr float kOne = PowerOfTwo(126 + kNvFp4Exponent);
    return __byte_perm(__float_as_uint(scale * kOne), 0, 0x3232);
  };
  return {twice(scales.x), twice(scales.y)};
}

// The exponent of the smallest number, which is subnormal.
template <DType kType>
inline constexpr int kLeastExponent = kType == DType::kF16 ? -24 : -133;

// A word's codes as pairs with as little work as possible: tensor cores take subnormal numbers, and
// those next to them, as they are. Pairs have 2^kStep (what a code stands for + kBias), the second
// half of them 1 / kOddWeight times that. With a bias an infinite x gives NaN. InOrder: as above.
template <Format kFormat, DType kType>
struct BareCodes {
  static constexpr int kStep = kLeastExponent<kType>;
  static constexpr float kBias = kFormat == Format::kU4B8 ? 8.0f : 0.0f, kOddWeight = 1.0f / 16;

  static __device__ __forceinline__ void Decode(uint32_t word, uint32_t (&pairs)[4]) {
    const uint32_t shifted = word >> 8;
    pairs[0] = word & 0x000f000fu, pairs[1] = shifted & 0x000f000fu;
    pairs[2] = word & 0x00f000f0u, pairs[3] = shifted & 0x00f000f0u;
  }
  // Columns 0 and 4, 2 and 6, 1 and 5, 3 and 7.
  static __device__ __forceinline__ uint4 InOrder(const uint4& x) {
    return {__byte_perm(x.x, x.z, 0x5410), __byte_perm(x.y, x.w, 0x5410),
            __byte_perm(x.x, x.z, 0x7632), __byte_perm(x.y, x.w, 0x7632)};
  }
};

template <DType kType>
struct BareCodes<Format::kI8, kType> {
  static constexpr int kStep = kLeastExponent<kType>;
  static constexpr float kBias = 128.0f, kOddWeight = 1.0f;

  static __device__ __forceinline__ void Decode(uint32_t word, uint32_t (&pairs)[2]) {
    word ^= 0x80808080u;
    pairs[0] = word & 0x00ff00ffu, pairs[1] = word >> 8 & 0x00ff00ffu;
  }
  // Columns 0 and 2, 1 and 3, 4 and 6, 5 and 7.
  static __device__ __forceinline__ uint4 InOrder(const uint4& x) {
    return {__byte_perm(x.x, x.y, 0x5410), __byte_perm(x.x, x.y, 0x7632),
            __byte_perm(x.z, x.w, 0x5410), __byte_perm(x.z, x.w, 0x7632)};
  }
};

template <DType kType>
struct BareCodes<Format::kE2M1, kType> {
  static constexpr int kStep = kType == DType::kF16 ? -14 : -126;
  static constexpr float kBias = 0.0f, kOddWeight = 1.0f;

  static __device__ __forceinline__ void Decode(uint32_t word, uint32_t (&pairs)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) pairs[j] = SpreadCodes<Format::kE2M1, kType>::Bits(word, j);
  }
  static __device__ __forceinline__ uint4 InOrder(const uint4& x) {
    return SpreadCodes<Format::kE2M1, kType>::InOrder(x);
  }
};

// The same of nvfp4: codes times their scales. A lane's eight columns are of one group.
template <DType kType>
struct NvFp4Codes {
  static constexpr int kStep = kNvFp4Exponent;
  static constexpr float kBias = 0.0f, kOddWeight = 1.0f;

  static __device__ __forceinline__ void Decode(uint32_t word, uint32_t scale,
                                                uint32_t (&pairs)[4]) {
    SpreadCodes<Format::kE2M1, kType>(0).Decode(word, pairs, scale);
  }
  static __device__ __forceinline__ uint4 InOrder(const uint4& x) {
    return SpreadCodes<Format::kE2M1, kType>::InOrder(x);
  }
};

// e4m3 is decoded: to move its parts to where f16 and bf16 have them takes as long.
template <DType kType>
struct BareCodes<Format::kE4M3, kType> {
  static constexpr int kStep = 0;
  static constexpr float kBias = 0.0f, kOddWeight = 1.0f;

  static __device__ __forceinline__ void Decode(uint32_t word, uint32_t (&pairs)[2]) {
    matmul::Decode<Format::kE4M3, kType>({word, 0}, pairs);
  }
  static __device__ __forceinline__ uint4 InOrder(const uint4& x) { return x; }
};

// Codes of columns 16 step + 4c ... + 3 of a block, of one row of a tile. `block`: its first line.
template <Format kFormat>
__device__ __forceinline__ FourCodes LoadFour(const char* block, int row, int step, int c) {
  constexpr int kBits = static_cast<int>(BitsOf(kFormat)), kLine = static_cast<int>(kLineBytes);
  const char* const words = block + 4 * row;
  if constexpr (kBits == 8)
    return {*reinterpret_cast<const uint32_t*>(words + (4 * step + c) * kLine), 0};
  const uint32_t low =
      *reinterpret_cast<const uint16_t*>(words + (2 * step + c / 2) * kLine + c % 2 * 2);
  if constexpr (kBits == 5)
    return {low, *reinterpret_cast<const uint32_t*>(words + 4 * kLine) >> (16 * step + 4 * c)};
  if constexpr (kBits == 6)
    return {low, *reinterpret_cast<const uint8_t*>(words + (4 + step) * kLine + c)};
  return {low, 0};
}

}  // namespace intarsia::matmul
