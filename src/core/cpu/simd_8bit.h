// The 8-bit element types in registers of simd.h: OCP's fp8 formats and int8.
//
// Stores round to nearest even and saturate, infinities too; NaN stays NaN (0x7f, as NVIDIA's
// cvt.satfinite writes it) and becomes 0 in an integer. Loads are exact. Like simd.h, for
// <op>_cpu.cc files only.
#pragma once
#include "src/core/cpu/simd.h"

namespace intarsia {
namespace {

typedef uint8_t VecU8 __attribute__((vector_size(kLanes)));
typedef int8_t VecI8 __attribute__((vector_size(kLanes)));
typedef int16_t VecI16 __attribute__((vector_size(kLanes * 2)));

// Storage types. "OCP 8-bit Floating Point Specification (OFP8)", revision 1.0.
struct F8E4M3 {  // bias 7, no infinities, NaN is 0x7f and 0xff: ml_dtypes' float8_e4m3fn
  uint8_t bits;
};
struct F8E5M2 {  // f16's upper byte
  uint8_t bits;
};
struct I8 {
  int8_t value;
};

template <>
struct CpuType<DType::kF8E4M3> {
  using type = F8E4M3;
};
template <>
struct CpuType<DType::kF8E5M2> {
  using type = F8E5M2;
};
template <>
struct CpuType<DType::kI8> {
  using type = I8;
};

// kLanes bytes, sign-extended. By name where GCC 12 would widen in pieces.
[[gnu::always_inline]] inline VecI16 LoadBytes(const void* p) {
  VecI8 bytes;
  std::memcpy(&bytes, p, sizeof bytes);
#if defined(__AVX512F__)
  return reinterpret_cast<VecI16>(_mm256_cvtepi8_epi16(reinterpret_cast<__m128i>(bytes)));
#elif defined(__AVX2__)
  return reinterpret_cast<VecI16>(_mm_cvtepi8_epi16(
      _mm_loadl_epi64(static_cast<const __m128i*>(static_cast<const void*>(&bytes)))));
#else
  return __builtin_convertvector(bytes, VecI16);
#endif
}

[[gnu::always_inline]] inline VecF Load(const F8E5M2* p) {
  return WidenF16(reinterpret_cast<VecU16>(LoadBytes(p) << 8));
}
[[gnu::always_inline]] inline VecF Load(const F8E4M3* p) {
  // Exponent and mantissa at f16's places give the number by 2^-8, denormals included: f16's bias
  // is 15. The shift moves the sign's first copy to bit 15 and leaves a second one in bit 14.
  const VecI16 half = (LoadBytes(p) << 7) & static_cast<int16_t>(0xbfff);
  // NaN has all of these bits set, and nothing else carries into bit 14. With it, it is f16's NaN.
  const VecI16 nan = (half + 0x80) & 0x4000;
  return WidenF16(reinterpret_cast<VecU16>(half | nan)) * 256.0f;
}
[[gnu::always_inline]] inline VecF Load(const I8* p) {
#if defined(__AVX512F__)
  VecI8 bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  return reinterpret_cast<VecF>(
      _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(reinterpret_cast<__m128i>(bytes))));
#elif defined(__AVX2__)
  return reinterpret_cast<VecF>(
      _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(reinterpret_cast<__m128i>(LoadBytes(p)))));
#else
  return __builtin_convertvector(__builtin_convertvector(LoadBytes(p), VecI), VecF);
#endif
}

// The low byte of each lane, which must be below 256.
[[gnu::always_inline]] inline VecU8 NarrowToBytes(VecU x) {
#if defined(__AVX512F__)
  return reinterpret_cast<VecU8>(_mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(x)));
#elif defined(__AVX2__)
  const __m256i wide = reinterpret_cast<__m256i>(x);
  const __m128i words =
      _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  const __m128i packed = _mm_packus_epi16(words, words);
  VecU8 bytes;
  std::memcpy(&bytes, &packed, sizeof bytes);
  return bytes;
#else
  return __builtin_convertvector(x, VecU8);
#endif
}

// f32 to a sign, 7 - kMantissa bits of exponent and kMantissa bits of mantissa. kLargest: the
// largest finite number.
template <int kMantissa>
[[gnu::always_inline]] inline VecU8 RoundF8(VecF x, float largest) {
  constexpr int kBias = (1 << (6 - kMantissa)) - 1, kShift = 23 - kMantissa;
  constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << kMantissa;
  constexpr uint32_t kLeastNormal = static_cast<uint32_t>(128 - kBias) << 23;
  // Adding it leaves multiples of the least denormal number, rounded to nearest even by the sum.
  constexpr uint32_t kMagic = static_cast<uint32_t>(127 + 24 - kBias - kMantissa) << 23;
  const VecU bits = Bits(x), sign = (bits >> 24) & 0x80u;
  const VecI wide = reinterpret_cast<VecI>(bits & 0x7fffffffu);
  const VecI most = reinterpret_cast<VecI>(Bits(Splat(largest)));
  const VecU size = reinterpret_cast<VecU>(wide < most ? wide : most);  // of NaN, too
  const VecU normal =
      ((size + ((1u << (kShift - 1)) - 1) + ((size >> kShift) & 1u)) >> kShift) - kRebias;
  const VecU denormal = Bits(Bits(size) + Bits(VecU{} + kMagic)) - kMagic;
  const VecI is_normal = wide >= static_cast<int32_t>(kLeastNormal);
  const VecU code = (is_normal ? normal : denormal) | sign;
  return NarrowToBytes(x == x ? code : VecU{} + 0x7fu);
}
[[gnu::always_inline]] inline VecU8 Round(VecF x, F8E4M3) { return RoundF8<3>(x, 448.0f); }
[[gnu::always_inline]] inline VecU8 Round(VecF x, F8E5M2) { return RoundF8<2>(x, 57344.0f); }
[[gnu::always_inline]] inline VecU8 Round(VecF x, I8) {
  const VecF magic = Splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const VecF low = x > -128.0f ? x : Splat(-128.0f);
  const VecF clamped = low < 127.0f ? low : Splat(127.0f);
  return NarrowToBytes(x == x ? Bits(clamped + magic) & 0xffu : VecU{});
}

}  // namespace
}  // namespace intarsia
