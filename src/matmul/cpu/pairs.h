// Products of bf16 by AVX-512's sums of two products (VDPBF16PS, AVX512_BF16): a lane of 32 bits
// holds two neighbors along the sum, a pair. So panels.h and columns.h hold, with pairs in place of
// f32's, twice as many numbers in a register, and no weight is widened. A lane of sums becomes
//   s = r(r(s + x1 w1) + x0 w0),   r: to the nearest f32, ties to even,
// in which numbers below 2^-126 in size count as zeros: those of x and w, and those that r gives
// (Intel SDM, volume 2, VDPBF16PS: "output denormals are always flushed to zero and input denormals
// are always treated as zero", whatever MXCSR says). The products by f32 keep them. NaN and
// infinities are as there. An odd sum's last pair has zeros of ours on both sides. For *_cpu.cc
// files only.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "src/core/cpu/aligned_floats.h"
#include "src/core/cpu/simd.h"
#include "src/core/round.h"
#include "src/matmul/cpu/columns.h"
#include "src/matmul/cpu/panels.h"

namespace intarsia::matmul {
namespace {

// Two neighbors along the sum, the first in the lower bits.
struct Pair {
  BF16 first, second;
};

// `count` numbers as pairs, up to `pairs` of them; zeros stand for those that there are not.
inline void CopyPairs(const BF16* from, int64_t count, int64_t pairs, void* to) {
  const auto bytes = static_cast<size_t>(std::clamp<int64_t>(count, 0, 2 * pairs)) * sizeof(BF16);
  std::memcpy(to, from, bytes);
  std::memset(static_cast<char*>(to) + bytes, 0, static_cast<size_t>(pairs) * sizeof(Pair) - bytes);
}

// The numbers of two rows as pairs.
[[gnu::always_inline]] inline VecF PairsOf(VecF first, VecF second) {
  return Bits(Bits(second) | Bits(first) >> 16);
}

#if defined(__AVX512F__)

inline bool HasPairs() { return __builtin_cpu_supports("avx512bf16"); }

// kCount pairs over and over.
template <int kCount>
[[gnu::always_inline]] inline __m512i RepeatPairs(const void* p) {
  if constexpr (kCount == 1) {
    int32_t pair;
    std::memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
  } else if constexpr (kCount == 2) {
    int64_t pairs;
    std::memcpy(&pairs, p, sizeof pairs);
    return _mm512_set1_epi64(pairs);
  } else if constexpr (kCount == 4) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  } else if constexpr (kCount == 8) {
    return _mm512_broadcast_i32x8(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  } else {
    static_assert(kCount == kLanes);
    return _mm512_loadu_si512(p);
  }
}

[[gnu::always_inline, gnu::target("avx512bf16")]] inline VecF AddProducts(VecF sums, __m512i a,
                                                                          __m512i b) {
  return reinterpret_cast<VecF>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sums),
                                                 reinterpret_cast<__m512bh>(a),
                                                 reinterpret_cast<__m512bh>(b)));
}

// sums[r] += panel times row r of w, over `count` pairs, a multiple of kLanes. The loops are those
// of panels.h: GCC inlines no instructions of another target into a template that both could share.
template <int kWidth>
[[gnu::noinline, gnu::target("avx512bf16")]] void MultiplyPanel(const float* panel,
                                                                const Pair* const (&w)[kWeightRows],
                                                                int64_t count, Ahead ahead,
                                                                float* sums) {
  constexpr int kV = kVecs<kWidth>, kK = kDepth<kWidth>;
  constexpr int kAtOnce = std::min(kWeightRows, kAccumulators / kV);
  for (int first = 0; first < kWeightRows; first += kAtOnce, sums += kAtOnce * kV * kLanes) {
    VecF s[kAtOnce][kV];
#pragma GCC unroll 16
    for (int i = 0; i < kAtOnce * kV; ++i) s[i / kV][i % kV] = Load(sums + i * kLanes);
    for (int64_t q = 0; q < count; q += kLanes) {
      ahead.Fetch();
#pragma GCC unroll 4
      for (int j = 0; j < kLanes; j += kK) {
        __m512i x[kV];
#pragma GCC unroll 16
        for (int v = 0; v < kV; ++v)
          x[v] = _mm512_loadu_si512(panel + (q + j) * kWidth + v * kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < kAtOnce; ++r) {
          const __m512i w_in = RepeatPairs<kK>(w[first + r] + q + j);
#pragma GCC unroll 16
          for (int v = 0; v < kV; ++v) s[r][v] = AddProducts(s[r][v], w_in, x[v]);
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kAtOnce * kV; ++i) Store(sums + i * kLanes, s[i / kV][i % kV]);
  }
}

// Columns that a register of w has in each of two rows. Their pairs fill two registers, in the
// order in which VPUNPCKLWD and VPUNPCKHWD make them: of each 8 columns the first register has the
// lower 4, and the second the others. Sums keep this order until SortColumns.
constexpr int kPairColumns = 2 * kLanes;

struct PairsOfColumns {
  __m512i low, high;
};
// Of rows q and q + 1 of w; zeros stand for a second row that there is not, and for columns beyond
// those of `there`.
[[gnu::always_inline]] inline PairsOfColumns LoadPairs(const BF16* w, int64_t w_row, bool both,
                                                       __mmask32 there) {
  const __m512i even = _mm512_maskz_loadu_epi16(there, w);
  const __m512i odd = _mm512_maskz_loadu_epi16(both ? there : 0, w + w_row);
  return {_mm512_unpacklo_epi16(even, odd), _mm512_unpackhi_epi16(even, odd)};
}
// The rows that come `ahead` rows later. Each half of a line by itself: with one request a line,
// memory gives a fifth less or worse (docs/notebook/cpu.md).
[[gnu::always_inline]] inline void FetchPairs(const BF16* w, int64_t w_row, int64_t ahead) {
  const BF16* const from = w + ahead * w_row;
  __builtin_prefetch(from, 0, 2);
  __builtin_prefetch(from + kLanes, 0, 2);
  __builtin_prefetch(from + w_row, 0, 2);
  __builtin_prefetch(from + w_row + kLanes, 0, 2);
}
[[gnu::always_inline]] inline __mmask32 FirstColumns(int64_t columns) {
  return ~__mmask32{0} >> (kPairColumns - std::min<int64_t>(columns, kPairColumns));
}

// Some rows of w as they lie.
struct InPlace {
  const BF16* w;
  int64_t row, count;

  // The part from column j on.
  InPlace From(int64_t j) const { return {w + j, row, count}; }
  [[gnu::always_inline]] PairsOfColumns At(int64_t pair, int block, __mmask32 there) const {
    const BF16* const at = w + 2 * pair * row + block * kPairColumns;
    FetchPairs(at, row, count);
    return LoadPairs(at, row, 2 * pair + 1 < count, there);
  }
};

// The same as pairs, [columns / kPairColumns, pairs, kPairColumns] and kAlignFloats between blocks,
// so that these do not displace each other in a cache.
struct InPairs {
  const float* packed;
  int64_t count;

  int64_t BlockFloats() const { return CeilDiv(count, int64_t{2}) * kPairColumns + kAlignFloats; }
  InPairs From(int64_t j) const { return {packed + j / kPairColumns * BlockFloats(), count}; }
  [[gnu::always_inline]] PairsOfColumns At(int64_t pair, int block, __mmask32) const {
    const float* const at = packed + block * BlockFloats() + pair * kPairColumns;
    return {_mm512_load_si512(at), _mm512_load_si512(at + kLanes)};
  }
};
[[gnu::noinline, maybe_unused]] InPairs PackWeights(const BF16* w, int64_t w_row, int64_t count,
                                                    int64_t columns, float* to) {
  const InPairs packed{to, count};
  for (int64_t q = 0; q < count; q += 2, w += 2 * w_row, to += kPairColumns) {
    float* at = to;
    for (int64_t j = 0; j < columns; j += kPairColumns, at += packed.BlockFloats()) {
      FetchPairs(w + j, w_row, count);
      const PairsOfColumns pairs =
          LoadPairs(w + j, w_row, q + 1 < count, FirstColumns(columns - j));
      _mm512_store_si512(at, pairs.low);
      _mm512_store_si512(at + kLanes, pairs.high);
    }
  }
  return packed;
}

// sums[i][j] += sum_q a(i, q) w[q, j] for kRows rows and kBlocks times kPairColumns columns, the
// last of which are those of `mask`. `a` has pairs.
template <int kRows, int kBlocks, class Weights>
[[gnu::always_inline, gnu::target("avx512bf16")]] inline void MultiplyBlockOfPairs(
    Strided a, const Weights& w, __mmask32 mask, float* sums, int64_t sums_row) {
  constexpr int kVecs = 2 * kBlocks;
  VecF s[kRows][kVecs];
#pragma GCC unroll 16
  for (int i = 0; i < kRows * kVecs; ++i)
    s[i / kVecs][i % kVecs] = Load(sums + i / kVecs * sums_row + i % kVecs * kLanes);
  for (int64_t q = 0; 2 * q < w.count; ++q) {
    __m512i a_in[kRows];
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) a_in[i] = RepeatPairs<1>(a.data + i * a.row + q * a.column);
#pragma GCC unroll 16
    for (int b = 0; b < kBlocks; ++b) {
      const PairsOfColumns w_in = w.At(q, b, b + 1 < kBlocks ? FirstColumns(kPairColumns) : mask);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        s[i][2 * b] = AddProducts(s[i][2 * b], a_in[i], w_in.low);
        s[i][2 * b + 1] = AddProducts(s[i][2 * b + 1], a_in[i], w_in.high);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows * kVecs; ++i)
    Store(sums + i / kVecs * sums_row + i % kVecs * kLanes, s[i / kVecs][i % kVecs]);
}

// The same for all columns. Rows of sums have room for whole blocks.
template <int kRows, class Weights>
[[gnu::noinline, gnu::target("avx512bf16")]] void MultiplyRowsOfPairs(Strided a, const Weights& w,
                                                                      int64_t columns, float* sums,
                                                                      int64_t sums_row) {
  constexpr int kBlocks = kAccumulators / 2 / kRows;
  int64_t j = 0;
  for (; j + kBlocks * kPairColumns <= columns; j += kBlocks * kPairColumns)
    MultiplyBlockOfPairs<kRows, kBlocks>(a, w.From(j), FirstColumns(kPairColumns), sums + j,
                                         sums_row);
  for (; j < columns; j += kPairColumns)
    MultiplyBlockOfPairs<kRows, 1>(a, w.From(j), FirstColumns(columns - j), sums + j, sums_row);
}

// sums[rows, columns] += a w, as MultiplyColumns.
template <int kRows = kAccumulators / 2, class Weights>
void MultiplyColumnsOfPairs(Strided a, int64_t rows, const Weights& w, int64_t columns, float* sums,
                            int64_t sums_row) {
  while (rows >= kRows) {
    MultiplyRowsOfPairs<kRows>(a, w, columns, sums, sums_row);
    rows -= kRows;
    a.data += kRows * a.row;
    sums += kRows * sums_row;
  }
  if constexpr (kRows > 1) {
    if (rows > 0) MultiplyColumnsOfPairs<kRows / 2>(a, rows, w, columns, sums, sums_row);
  }
}

// So many rows make pairs of w in registers, anew for every kAccumulators / 2 of them. For more
// rows pairs are written down.
inline constexpr int64_t kRowsInPlace = kAccumulators;
template <int64_t kRoom>
void MultiplyColumnsOfPairs(Strided a, int64_t rows, const BF16* w, int64_t w_row, int64_t count,
                            int64_t columns, float* sums, int64_t sums_row) {
  if (rows <= kRowsInPlace)
    return MultiplyColumnsOfPairs(a, rows, InPlace{w, w_row, count}, columns, sums, sums_row);
  alignas(64) float packed[kRoom];
  MultiplyColumnsOfPairs(a, rows, PackWeights(w, w_row, count, columns, packed), columns, sums,
                         sums_row);
}

// The sums of kPairColumns columns in the order of the columns.
[[gnu::always_inline]] inline void SortColumns(float* sums) {
  const VecF a = Load(sums), b = Load(sums + kLanes);
  Store(sums,
        __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23));
  Store(sums + kLanes, __builtin_shufflevector(a, b, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15,
                                               28, 29, 30, 31));
}

#endif

}  // namespace
}  // namespace intarsia::matmul
