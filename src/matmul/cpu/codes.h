// Codes of weights (matmul/quantized.h) in registers: a register has neighbouring rows of one
// column. For *_cpu.cc files only.
#pragma once
#include <cstdint>

#include "src/core/cpu/simd_8bit.h"
#include "src/matmul/quantized.h"

namespace intarsia::matmul {
namespace {

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

// The numbers of column kColumn of a block, of the rows of a register.
template <Format kFormat, int kColumn>
[[gnu::always_inline]] inline VecF CodesAt(const uint8_t* block, int part) {
  constexpr int64_t kBits = BitsOf(kFormat);
  if constexpr (kBits == 8) {
    const VecU words = Words(block, kColumn / 4, part);
    constexpr int kByte = kColumn % 4;
    if constexpr (kFormat == Format::kI8) {
      const VecI top = reinterpret_cast<VecI>(words << (24 - 8 * kByte));
      return __builtin_convertvector(top >> 24, VecF);
    } else {
      const VecU code = (words >> (8 * kByte)) & 0xffu, size = code & 0x7fu;
      const VecU sign = (code & 0x80u) << 24;
      // e4m3's bias is 7, f32's 127.
      const VecF normal = Bits((size << 20) + (120u << 23));
      const VecF number = size < 8u ? ToFloats(size) * 0x1p-9f : normal;
      return Bits(Bits(size == 0x7fu ? Bits(VecU{} + 0x7fc00000u) : number) | sign);
    }
  } else {
    const VecU low = Words(block, kColumn / 8, part) >> (4 * (kColumn % 8));
    if constexpr (kBits == 5) {
      const VecU high = Words(block, 4, part);
      constexpr int kLeft = 4 - kColumn;
      const VecU fifth =
          (kLeft >= 0 ? high << (kLeft >= 0 ? kLeft : 0) : high >> (kLeft >= 0 ? 0 : -kLeft)) &
          0x10u;
      return ToFloatsLess < kFormat == Format::kU5B16 ? 16 : 0 > ((low & 0xfu) | fifth);
    } else if constexpr (kBits == 6) {
      const VecU high = Words(block, 4 + kColumn / 16, part);
      constexpr int kLeft = 4 - 2 * (kColumn % 16);
      const VecU upper =
          (kLeft >= 0 ? high << (kLeft >= 0 ? kLeft : 0) : high >> (kLeft >= 0 ? 0 : -kLeft)) &
          0x30u;
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

// Some of a register's scales or zeros, which are numbers of the dtype.
[[gnu::always_inline]] inline VecF LoadFactors(const void* data, DType dtype, int64_t first) {
  const uint8_t* const bytes = static_cast<const uint8_t*>(data) + first;
  switch (dtype) {
    case DType::kF16:
      return Load(static_cast<const F16*>(data) + first);
    case DType::kBF16:
      return Load(static_cast<const BF16*>(data) + first);
    case DType::kF8E4M3:
      return Load(reinterpret_cast<const F8E4M3*>(bytes));
    case DType::kI8:
      return Load(reinterpret_cast<const I8*>(bytes));
    case DType::kU8:
    case DType::kF8E8M0: {
      VecU8 codes;
      std::memcpy(&codes, bytes, sizeof codes);
      const VecU wide = __builtin_convertvector(codes, VecU);
      if (dtype == DType::kU8) return ToFloats(wide);
      // 2^(code - 127): f32's exponent, but that of code 0 is that of a subnormal number. 255 is
      // NaN.
      const VecU bits = wide == 0u ? VecU{} + 0x00400000u : wide << 23;
      return Bits(wide == 255u ? VecU{} + 0x7fc00000u : bits);
    }
    default:
      return Load(static_cast<const float*>(data) + first);
  }
}

// Reads the scales or zeros of one tile, group by group.
class FactorReader {
 public:
  FactorReader(const Factors& factors, int64_t groups, int64_t tile)
      : factors_(factors),
        first_(tile * groups * kTileRows),
        outer_first_(tile * factors.outers * kTileRows),
        groups_each_(factors.outers ? groups / factors.outers : 1) {
    if (factors.outer && !factors.outers) {
      float one[kLanes] = {};
      switch (factors.outer_dtype) {
        case DType::kF16:
          Store(one, LoadPart(static_cast<const F16*>(factors.outer), 1));
          break;
        case DType::kBF16:
          Store(one, LoadPart(static_cast<const BF16*>(factors.outer), 1));
          break;
        default:
          one[0] = *static_cast<const float*>(factors.outer);
      }
      all_ = one[0];
    }
  }
  [[gnu::always_inline]] VecF At(int64_t group, int part) const {
    const int64_t lane = part * kLanes;
    const VecF inner =
        LoadFactors(factors_.data, factors_.dtype, first_ + group * kTileRows + lane);
    if (!factors_.outer) return inner;
    if (!factors_.outers) return inner * all_;
    const int64_t at = outer_first_ + group / groups_each_ * kTileRows + lane;
    return inner * LoadFactors(factors_.outer, factors_.outer_dtype, at);
  }

 private:
  const Factors& factors_;
  int64_t first_, outer_first_, groups_each_;
  float all_ = 1;
};

}  // namespace
}  // namespace intarsia::matmul
