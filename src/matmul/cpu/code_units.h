// What codes become for panels.h: units, each a lane of 32 bits, and their products.
//
//   float  one number, of e4m3 or int8, everywhere
//   Pair   two numbers of e4m3, exact in bf16 (pairs.h)
//   Quad   four codes of int8, multiplied by VPDPBUSD, whose first factors are unsigned: those of w
//          are 128 too large, which adds 128 times the sum of x's codes, and is taken off again
//
// Zeros stand for what the last block lacks. For *_cpu.cc files only.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "src/core/cpu/simd_8bit.h"
#include "src/matmul/cpu/pairs.h"
#include "src/matmul/cpu/panels.h"
#include "src/matmul/scaled.h"

namespace intarsia::matmul {
namespace {

struct Quad {
  uint8_t codes[4];
};

template <class Unit>
constexpr int64_t kCodesOf = 4;
template <>
constexpr int64_t kCodesOf<float> = 1;
template <>
constexpr int64_t kCodesOf<Pair> = 2;

// Whose codes are decoded: `count` of them to units, up to a whole block.
enum class Factor { kX, kW };

template <Factor, class T>
void Decode(const T* codes, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Store(to + i, Load(codes + i));
  for (; i < RoundUp<int64_t>(count, kScaleBlock); i += kLanes)
    Store(to + i, LoadPart(codes + i, std::max<int64_t>(count - i, 0)));
}

#if defined(__AVX512F__)

inline bool HasQuads() { return __builtin_cpu_supports("avx512vnni"); }
inline bool HasPairsOfCodes() { return HasPairs() && __builtin_cpu_supports("avx512vbmi"); }

// A line of codes, and zeros where fewer than 64 are left.
[[gnu::always_inline]] inline __m512i LoadLine(const void* codes, int64_t left) {
  if (left >= 64) return _mm512_loadu_si512(codes);
  return _mm512_maskz_loadu_epi8(left > 0 ? ~uint64_t{0} >> (64 - left) : 0, codes);
}

template <Factor kFactor>
void Decode(const I8* codes, int64_t count, Quad* to) {
  for (int64_t i = 0; i < RoundUp<int64_t>(count, kScaleBlock); i += 64) {
    __m512i line = LoadLine(codes + i, count - i);
    if constexpr (kFactor == Factor::kW) line = _mm512_xor_si512(line, _mm512_set1_epi8(-128));
    _mm512_storeu_si512(to + i / 4, line);
  }
}

// bf16 of e4m3's codes without a sign, upper and lower bytes.
struct Bf16OfE4M3 {
  alignas(64) uint8_t high[128] = {}, low[128] = {};

  constexpr Bf16OfE4M3() {
    for (unsigned code = 1; code < 128; ++code) {
      unsigned exponent = code >> 3, mantissa = code & 7;
      if (exponent == 0) {  // a denormal number, which bf16 has as a normal one
        exponent = 1;
        while (mantissa < 8) mantissa *= 2, --exponent;
      }
      // The biases are 7 and 127; the largest code is NaN.
      const unsigned bits = code == 127 ? 0x7fc0u : (exponent + 120) << 7 | (mantissa & 7) << 4;
      high[code] = static_cast<uint8_t>(bits >> 8);
      low[code] = static_cast<uint8_t>(bits & 255);
    }
  }
};
inline constexpr Bf16OfE4M3 kBf16OfE4M3;

template <Factor>
[[gnu::noinline, gnu::target("avx512vbmi")]] void Decode(const F8E4M3* codes, int64_t count,
                                                         Pair* to) {
  const __m512i high_0 = _mm512_load_si512(kBf16OfE4M3.high);
  const __m512i high_1 = _mm512_load_si512(kBf16OfE4M3.high + 64);
  const __m512i low_0 = _mm512_load_si512(kBf16OfE4M3.low);
  const __m512i low_1 = _mm512_load_si512(kBf16OfE4M3.low + 64);
  // Halves of 16 bytes are unpacked: the first 32 codes go to the lower ones.
  const __m512i halves = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  const __m512i sign = _mm512_set1_epi8(-128);
  for (int64_t i = 0; i < RoundUp<int64_t>(count, kScaleBlock); i += 64) {
    const __m512i line = _mm512_permutexvar_epi64(halves, LoadLine(codes + i, count - i));
    const __m512i low = _mm512_permutex2var_epi8(low_0, line, low_1);
    const __m512i high = _mm512_or_si512(_mm512_permutex2var_epi8(high_0, line, high_1),
                                         _mm512_and_si512(line, sign));
    _mm512_storeu_si512(to + i / 2, _mm512_unpacklo_epi8(low, high));
    _mm512_storeu_si512(to + i / 2 + kLanes, _mm512_unpackhi_epi8(low, high));
  }
}

// sums[r] += panel times row r of w, over `count` quads, a multiple of kLanes. The loops are those
// of panels.h and pairs.h: GCC inlines no instructions of another target into a template.
template <int kWidth>
[[gnu::noinline, gnu::target("avx512vnni")]] void MultiplyPanel(const float* panel,
                                                                const Quad* const (&w)[kWeightRows],
                                                                int64_t count, Ahead ahead,
                                                                int32_t* sums) {
  constexpr int kV = kVecs<kWidth>, kK = kDepth<kWidth>;
  static_assert(kWeightRows * kV <= kAccumulators);
  const __m512i bias = _mm512_set1_epi8(-128);
  __m512i s[kWeightRows][kV], too_much[kV];  // 128 times the sums of x
#pragma GCC unroll 16
  for (int i = 0; i < kWeightRows * kV; ++i)
    s[i / kV][i % kV] = _mm512_loadu_si512(sums + i * kLanes);
#pragma GCC unroll 16
  for (int v = 0; v < kV; ++v) too_much[v] = _mm512_setzero_si512();
  for (int64_t q = 0; q < count; q += kLanes) {
    ahead.Fetch();
#pragma GCC unroll 4
    for (int j = 0; j < kLanes; j += kK) {
      __m512i x[kV];
#pragma GCC unroll 16
      for (int v = 0; v < kV; ++v) {
        x[v] = _mm512_loadu_si512(panel + (q + j) * kWidth + v * kLanes);
        too_much[v] = _mm512_dpbusd_epi32(too_much[v], bias, x[v]);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kWeightRows; ++r) {
        const __m512i w_in = RepeatPairs<kK>(w[r] + q + j);
#pragma GCC unroll 16
        for (int v = 0; v < kV; ++v) s[r][v] = _mm512_dpbusd_epi32(s[r][v], w_in, x[v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kWeightRows * kV; ++i)
    _mm512_storeu_si512(sums + i * kLanes, _mm512_sub_epi32(s[i / kV][i % kV], too_much[i % kV]));
}

#endif

// The same of codes of int8 as floats: sums of a part are exact, and those of all are integers.
template <int kWidth>
void MultiplyPanel(const float* panel, const float* const (&w)[kWeightRows], int64_t count,
                   Ahead ahead, int32_t* sums) {
  static_assert(kPanelSum << 14 <= 1 << 24);
  constexpr int kFloats = kWeightRows * kVecs<kWidth> * kLanes;
  alignas(64) float part[kFloats] = {};
  MultiplyPanel<kWidth>(panel, w, count, ahead, part);
  for (int i = 0; i < kFloats; ++i) sums[i] += static_cast<int32_t>(part[i]);
}

}  // namespace
}  // namespace intarsia::matmul
