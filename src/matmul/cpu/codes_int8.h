// Products of a row of x in int8 with weights in codes, by AVX-512's sums of four products of bytes
// (VPDPBUSD): a lane has a row of w, and its word the codes of neighboring columns. Codes become
// unsigned bytes, kBias too large; what that adds to a sum is kBias times the sum of x's codes. For
// *_cpu.cc files only.
#pragma once
#include "src/matmul/cpu/codes.h"

namespace intarsia::matmul {
namespace {

constexpr bool HasBytes(Format format) {
  return format == Format::kU4 || format == Format::kU4B8 || format == Format::kE2M1 ||
         format == Format::kI8;
}

// x's codes lie as words of w's columns do: of 4 bits, even columns of 8 before odd ones.
[[gnu::always_inline]] inline int64_t PlaceInStep(Format format, int64_t column) {
  return BitsOf(format) == 4 ? column % 2 * 4 + column / 2 : column;
}

#if defined(__AVX512F__)

inline bool HasVnni() { return __builtin_cpu_supports("avx512vnni"); }

// out[0 ... 15] = the sums of a tile for a row of x. Groups are whole blocks.
template <Format kFormat>
[[gnu::target("avx512vnni")]] void MultiplyTileInt8(const QuantizedPass& pass, int64_t tile,
                                                    int64_t row, float* out) {
  constexpr int kBias = kFormat == Format::kU4B8   ? 8
                        : kFormat == Format::kE2M1 ? 12
                        : kFormat == Format::kI8   ? 128
                                                   : 0;
  constexpr int64_t kBlockBytes = BitsOf(kFormat) * kLineBytes;
  const QuantizedParams& params = pass.params;
  const int64_t blocks = params.blocks(), group_blocks = params.group / kBlockColumns;
  const uint8_t* const codes = params.packed + tile * params.tile_bytes();
  const int8_t* const x = pass.codes + row * blocks * kBlockColumns;
  const float* const x_scales = pass.code_scales + row * blocks;
  const int32_t* const x_code_sums = pass.code_sums + row * blocks;
  const float* const x_sums = pass.sums ? pass.sums + row * params.groups : nullptr;
  // Twice the numbers of e2m1, plus kBias.
  alignas(16) constexpr int8_t kTwice[] = {12, 13, 14, 15, 16, 18, 20, 24,
                                           12, 11, 10, 9,  8,  6,  4,  0};
  alignas(64) int8_t tables[64];
  for (int i = 0; i < 64; ++i) tables[i] = kTwice[i % 16];
  const __m512i table = _mm512_load_si512(tables);
  const __m512i low = _mm512_set1_epi8(15);
  VecF sum = {};
  Affine affine;
  for (int64_t group = 0; group < params.groups; ++group) {
    const int64_t at = group % kGroupsAtOnce * kTileRows;
    if (at == 0)
      ReadAffine(params, tile, group, std::min(kGroupsAtOnce, params.groups - group), affine);
    VecF of_group = {};
    const int64_t end = std::min((group + 1) * group_blocks, blocks);
    for (int64_t block = group * group_blocks; block < end; ++block) {
      const uint8_t* const w = codes + block * kBlockBytes;
      __m512i even = _mm512_set1_epi32(-kBias * x_code_sums[block]), odd = _mm512_setzero_si512();
      for (int line = 0; line < static_cast<int>(BitsOf(kFormat)); ++line) {
        __builtin_prefetch(w + kAheadBytes + line * kLineBytes, 0, 2);
        const __m512i words = _mm512_loadu_si512(w + line * kLineBytes);
        if constexpr (kFormat == Format::kI8) {
          int32_t four;
          std::memcpy(&four, x + block * kBlockColumns + line * 4, sizeof four);
          const __m512i bytes = _mm512_xor_si512(words, _mm512_set1_epi8(-128));
          __m512i& into = line % 2 ? odd : even;
          into = _mm512_dpbusd_epi32(into, bytes, _mm512_set1_epi32(four));
        } else {
          int32_t first, second;
          std::memcpy(&first, x + block * kBlockColumns + line * 8, sizeof first);
          std::memcpy(&second, x + block * kBlockColumns + line * 8 + 4, sizeof second);
          __m512i a = _mm512_and_si512(words, low);
          __m512i b =
              _mm512_and_si512(reinterpret_cast<__m512i>(reinterpret_cast<VecU>(words) >> 4), low);
          if constexpr (kFormat == Format::kE2M1) {
            a = _mm512_shuffle_epi8(table, a);
            b = _mm512_shuffle_epi8(table, b);
          }
          even = _mm512_dpbusd_epi32(even, a, _mm512_set1_epi32(first));
          odd = _mm512_dpbusd_epi32(odd, b, _mm512_set1_epi32(second));
        }
      }
      const VecI sums = reinterpret_cast<VecI>(even) + reinterpret_cast<VecI>(odd);
      of_group += __builtin_convertvector(sums, VecF) * Splat(x_scales[block]);
    }
    if constexpr (kFormat == Format::kE2M1) of_group *= 0.5f;
    sum += Load(affine.scale + at) * of_group;
    if (x_sums) sum += Load(affine.zero + at) * Splat(x_sums[group]);
  }
  Store(out, sum);
}
#endif

}  // namespace
}  // namespace intarsia::matmul
