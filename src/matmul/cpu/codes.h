// Codes of weights (matmul/quantized.h) in registers: a register has neighboring rows of one
// column. For *_cpu.cc files only.
#pragma once
#include <algorithm>
#include <cstdint>

#include "src/core/cpu/simd_8bit.h"
#include "src/matmul/quantized.h"

namespace intarsia::matmul {
namespace {

constexpr int64_t kAheadBytes = 1024;  // of a tile, asked for before they are needed

// Registers that a line fills.
inline constexpr int kParts = kTileRows / kLanes;

[[gnu::always_inline]] inline VecU Words(const uint8_t* block, int line, int part) {
  VecU words;
  std::memcpy(&words, block + line * kLineBytes + part * kLanes * 4, sizeof words);
  return words;
}

[[gnu::always_inline]] inline VecF ToFloats(VecU x) {
  return __builtin_convertvector(reinterpret_cast<VecI>(x), VecF);
}

// Integers below 2^22, less kBias. As f32's lowest bits they are the distance from 2^23, which
// costs no more than a conversion and takes kBias with it.
template <int kBias>
[[gnu::always_inline]] inline VecF ToFloatsLess(VecU x) {
  if constexpr (kBias == 0) return ToFloats(x);
  return Bits(x | 0x4b000000u) - (8388608.0f + kBias);
}

// Bit kFrom, and those above it, moved to bit kTo.
template <int kFrom, int kTo>
[[gnu::always_inline]] inline VecU Moved(VecU x) {
  if constexpr (kFrom < kTo)
    return x << (kTo - kFrom);
  else
    return x >> (kFrom - kTo);
}

// Numbers by a 4-bit code, in the lowest bits of each lane; AVX-512 looks at no others.
#if defined(__AVX512F__)
[[gnu::always_inline]] inline VecF LookUp(const float (&table)[16], VecU codes) {
  return reinterpret_cast<VecF>(_mm512_permutexvar_ps(reinterpret_cast<__m512i>(codes),
                                                      reinterpret_cast<__m512>(Load(table))));
}
#endif

inline constexpr float kU4Table[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
inline constexpr float kU4B8Table[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
// OCP Microscaling Formats (MX) Specification v1.0, section 5.3.3: a sign, two bits of exponent
// with bias 1, one of mantissa.
inline constexpr float kE2M1Table[16] = {0,     0.5f,  1,     1.5f,  2,     3,     4,     6,
                                         -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// The words of 8 neighboring columns, a step: four of them make a block.
inline constexpr int kStepColumns = 8, kBlockSteps = kBlockColumns / kStepColumns;

template <Format kFormat>
struct StepWords {
  VecU low, high;  // of 8 bits: columns 0 ... 3 and 4 ... 7; else lower bits, and what 4 lack
};
template <Format kFormat>
[[gnu::always_inline]] inline StepWords<kFormat> WordsOf(const uint8_t* block, int step, int part) {
  constexpr int64_t kBits = BitsOf(kFormat);
  if constexpr (kBits == 8) return {Words(block, 2 * step, part), Words(block, 2 * step + 1, part)};
  const VecU low = Words(block, step, part);
  if constexpr (kBits == 5) return {low, Words(block, 4, part) >> (8 * step)};
  if constexpr (kBits == 6) return {low, Words(block, 4 + step / 2, part) >> (16 * (step % 2))};
  return {low, VecU{}};
}

// The numbers of column kColumn of a step, of the rows of a register.
template <Format kFormat, int kColumn>
[[gnu::always_inline]] inline VecF CodesAt(const StepWords<kFormat>& words) {
  constexpr int64_t kBits = BitsOf(kFormat);
  if constexpr (kBits == 8) {
    const VecU of_four = kColumn < 4 ? words.low : words.high;
    constexpr int kByte = kColumn % 4;
    if constexpr (kFormat == Format::kI8) {
      const VecI top = reinterpret_cast<VecI>(of_four << (24 - 8 * kByte));
      return __builtin_convertvector(top >> 24, VecF);
    } else {
      const VecU code = (of_four >> (8 * kByte)) & 0xffu, size = code & 0x7fu;
      const VecU sign = (code & 0x80u) << 24;
      // e4m3's bias is 7, f32's 127.
      const VecF normal = Bits((size << 20) + (120u << 23));
      const VecF number = size < 8u ? ToFloats(size) * 0x1p-9f : normal;
      return Bits(Bits(size == 0x7fu ? Bits(VecU{} + 0x7fc00000u) : number) | sign);
    }
  } else {
    const VecU low = words.low >> (4 * kColumn);
    if constexpr (kBits == 5) {
      const VecU fifth = Moved<kColumn, 4>(words.high) & 0x10u;
      return ToFloatsLess < kFormat == Format::kU5B16 ? 16 : 0 > ((low & 0xfu) | fifth);
    } else if constexpr (kBits == 6) {
      const VecU upper = Moved<2 * kColumn, 4>(words.high) & 0x30u;
      return ToFloatsLess<32>((low & 0xfu) | upper);
    } else {
#if defined(__AVX512F__)
      return LookUp(kFormat == Format::kU4     ? kU4Table
                    : kFormat == Format::kU4B8 ? kU4B8Table
                                               : kE2M1Table,
                    low);
#else
      if constexpr (kFormat == Format::kE2M1) {
        const VecU size = low & 7u;
#if defined(__AVX2__)
        const VecF number = reinterpret_cast<VecF>(_mm256_permutevar8x32_ps(
            reinterpret_cast<__m256>(Load(kE2M1Table)), reinterpret_cast<__m256i>(size)));
#else
        // A normal number's exponent and mantissa are at f32's places but for the bias.
        const VecF normal = Bits((size << 22) + (126u << 23));
        const VecF number = size < 2u ? ToFloats(size) * 0.5f : normal;
#endif
        return Bits(Bits(number) | (low & 8u) << 28);
      } else {
        return ToFloatsLess < kFormat == Format::kU4B8 ? 8 : 0 > (low & 0xfu);
      }
#endif
    }
  }
}

// f32's of e8m0 codes: 2^(code - 127), whose exponent the code is but for the subnormal one of code
// 0. 255 is NaN.
[[gnu::always_inline]] inline VecF PowersOf(VecU code) {
  const VecU bits = code == 0u ? VecU{} + 0x00400000u : code << 23;
  return Bits(code == 255u ? VecU{} + 0x7fc00000u : bits);
}
[[gnu::always_inline]] inline VecU LoadU8(const uint8_t* p) {
  VecU8 codes;
  std::memcpy(&codes, p, sizeof codes);
  return __builtin_convertvector(codes, VecU);
}

// to[0 ... n), n a multiple of the lanes, as f32.
[[gnu::noinline]] void Widen(const void* data, DType dtype, int64_t first, int64_t n, float* to) {
  const auto each = [&](auto load) __attribute__((always_inline)) {
    for (int64_t i = 0; i < n; i += kLanes) Store(to + i, load(first + i));
  };
  const uint8_t* const bytes = static_cast<const uint8_t*>(data);
  switch (dtype) {
    case DType::kF16:
      return each([&](int64_t i) { return Load(static_cast<const F16*>(data) + i); });
    case DType::kBF16:
      return each([&](int64_t i) { return Load(static_cast<const BF16*>(data) + i); });
    case DType::kF8E4M3:
      return each([&](int64_t i) { return Load(static_cast<const F8E4M3*>(data) + i); });
    case DType::kI8:
      return each([&](int64_t i) { return Load(static_cast<const I8*>(data) + i); });
    case DType::kU8:
      return each([&](int64_t i) { return ToFloats(LoadU8(bytes + i)); });
    case DType::kF8E8M0:
      return each([&](int64_t i) { return PowersOf(LoadU8(bytes + i)); });
    default:
      return each([&](int64_t i) { return Load(static_cast<const float*>(data) + i); });
  }
}

// What some groups of a tile add to sums of x q: scales, and what sums of x are multiplied by.
inline constexpr int64_t kGroupsAtOnce = 16;
struct Affine {
  alignas(64) float scale[kGroupsAtOnce * kTileRows];
  alignas(64) float zero[kGroupsAtOnce * kTileRows];
};

// Factors of `count` groups, [count, 16].
[[gnu::noinline]] void ReadFactors(const Factors& factors, int64_t groups, int64_t tile,
                                   int64_t first, int64_t count, float* to) {
  Widen(factors.data, factors.dtype, (tile * groups + first) * kTileRows, count * kTileRows, to);
  if (!factors.outer) return;
  alignas(64) float outer[kTileRows];
  if (!factors.outers) {
    float one = 0;
    switch (factors.outer_dtype) {
      case DType::kF16:
        one = LoadPart(static_cast<const F16*>(factors.outer), 1)[0];
        break;
      case DType::kBF16:
        one = LoadPart(static_cast<const BF16*>(factors.outer), 1)[0];
        break;
      default:
        one = *static_cast<const float*>(factors.outer);
    }
    for (int64_t i = 0; i < count * kTileRows; i += kLanes) Store(to + i, Load(to + i) * one);
    return;
  }
  const int64_t each = groups / factors.outers;  // groups of an outer factor
  for (int64_t i = 0, last = -1; i < count; ++i) {
    const int64_t at = (first + i) / each;
    if (at != last)
      Widen(factors.outer, factors.outer_dtype, (tile * factors.outers + at) * kTileRows, kTileRows,
            outer);
    last = at;
    for (int64_t j = 0; j < kTileRows; j += kLanes)
      Store(to + i * kTileRows + j, Load(to + i * kTileRows + j) * Load(outer + j));
  }
}
[[gnu::noinline]] void ReadAffine(const QuantizedParams& params, int64_t tile, int64_t first,
                                  int64_t count, Affine& affine) {
  ReadFactors(params.scales, params.groups, tile, first, count, affine.scale);
  if (!params.zeros.data) {
    std::fill_n(affine.zero, count * kTileRows, 0.0f);
    return;
  }
  ReadFactors(params.zeros, params.groups, tile, first, count, affine.zero);
  if (!params.points) return;
  for (int64_t i = 0; i < count * kTileRows; i += kLanes)
    Store(affine.zero + i, -Load(affine.scale + i) * Load(affine.zero + i));
}

}  // namespace
}  // namespace intarsia::matmul
