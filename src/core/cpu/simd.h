// One register of f32 lanes and what kernels do with it, on GCC's and Clang's vector extension.
//
// Only <op>_cpu.cc files include this. Everything is in an anonymous namespace: see isa.h for why.
#pragma once
#include <cstdint>
#include <cstring>
#include <utility>

#include "src/core/cpu/isa.h"
#include "src/core/dtype.h"
#include "src/core/native_f16.h"
#include "src/core/normal_tail.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace intarsia {
namespace {

inline constexpr Isa kIsa = Isa::INTARSIA_ISA;  // set by CMake for each compilation

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

typedef float VecF __attribute__((vector_size(kLanes * 4)));
typedef int32_t VecI __attribute__((vector_size(kLanes * 4)));
typedef uint32_t VecU __attribute__((vector_size(kLanes * 4)));
typedef uint16_t VecU16 __attribute__((vector_size(kLanes * 2)));

// Accumulators of a block of a matrix product. A core starts two FMAs a cycle and each takes four,
// so eight is the least; more of them share a load, as far as the register file goes.
inline constexpr int kAccumulators = kLanes >= 16 ? 16 : 8;

// Storage types of the 16-bit dtypes. Those of 8 bits are in simd_8bit.h.
struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

template <DType kType>
struct CpuType;
template <>
struct CpuType<DType::kF32> {
  using type = float;
};
template <>
struct CpuType<DType::kF16> {
  using type = F16;
};
template <>
struct CpuType<DType::kBF16> {
  using type = BF16;
};
template <DType kType>
using CpuT = typename CpuType<kType>::type;

[[gnu::always_inline]] inline VecF Splat(float x) { return x - VecF{}; }  // -0 stays -0
[[gnu::always_inline]] inline VecF Bits(VecU bits) { return reinterpret_cast<VecF>(bits); }
[[gnu::always_inline]] inline VecU Bits(VecF x) { return reinterpret_cast<VecU>(x); }
[[gnu::always_inline]] inline VecF Select(VecI mask, VecF yes, VecF no) { return mask ? yes : no; }
[[gnu::always_inline]] inline VecF Abs(VecF x) { return Bits(Bits(x) & 0x7fffffffu); }
[[gnu::always_inline]] inline VecF Max(VecF a, VecF b) { return a > b ? a : b; }

[[gnu::always_inline]] inline VecU16 LoadBits(const uint16_t* p) {
  VecU16 bits;
  std::memcpy(&bits, p, sizeof bits);
  return bits;
}

// kLanes elements as f32. Exact.
[[gnu::always_inline]] inline VecF Load(const float* p) {
  VecF x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
[[gnu::always_inline]] inline VecF Load(const BF16* p) {
  // By name where GCC 12 would widen two halves and join them.
#if defined(__AVX512F__)
  const VecU bits = reinterpret_cast<VecU>(
      _mm512_maskz_cvtepu16_epi32(0xffff, reinterpret_cast<__m256i>(LoadBits(&p->bits))));
#elif defined(__AVX2__)
  const VecU bits =
      reinterpret_cast<VecU>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(LoadBits(&p->bits))));
#else
  const VecU bits = __builtin_convertvector(LoadBits(&p->bits), VecU);
#endif
  return Bits(bits << 16);
}
[[gnu::always_inline]] inline VecF WidenF16(VecU16 bits) {
#if defined(__AVX512F__)
  return reinterpret_cast<VecF>(_mm512_cvtph_ps(reinterpret_cast<__m256i>(bits)));
#elif defined(__AVX2__)
  return reinterpret_cast<VecF>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(bits)));
#else
  VecF x;
  for (int i = 0; i < kLanes; ++i) {
    const uint16_t b = bits[i];
    NativeF16 h;
    std::memcpy(&h, &b, 2);
    x[i] = static_cast<float>(h);
  }
  return x;
#endif
}
[[gnu::always_inline]] inline VecF Load(const F16* p) { return WidenF16(LoadBits(&p->bits)); }

// kCount numbers over and over, a power of two. By name where GCC 12 would build the register of
// pieces.
template <int kCount>
[[gnu::always_inline]] inline VecF Repeat(const float* p) {
  if constexpr (kCount == 1) {
    return Splat(*p);
  } else if constexpr (kCount == kLanes) {
    return Load(p);
#if defined(__AVX2__)
  } else if constexpr (kCount == 2) {
    int64_t pair;
    std::memcpy(&pair, p, sizeof pair);
    typedef int64_t VecPairs __attribute__((vector_size(kLanes * 4)));
    return reinterpret_cast<VecF>(pair - VecPairs{});
#endif
#if defined(__AVX512F__)
  } else if constexpr (kCount == 4) {
    return reinterpret_cast<VecF>(_mm512_broadcast_f32x4(_mm_loadu_ps(p)));
  } else {
    static_assert(kCount == 8);
    return reinterpret_cast<VecF>(_mm512_broadcast_f32x8(_mm256_loadu_ps(p)));
#elif defined(__AVX2__)
  } else {
    static_assert(kCount == 4);
    __m128 numbers;
    std::memcpy(&numbers, p, sizeof numbers);
    return reinterpret_cast<VecF>(_mm256_broadcast_ps(&numbers));
#else
  } else {
    VecF x;
    for (int i = 0; i < kLanes; ++i) x[i] = p[i % kCount];
    return x;
#endif
  }
}

// f32 to the storage type, to nearest even; NaN stays NaN.
[[gnu::always_inline]] inline VecU16 Round(VecF x, BF16) {
  const VecU bits = Bits(x);
  const VecU rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const VecU quiet = (bits >> 16) | 0x40u;
  return __builtin_convertvector(x == x ? rounded : quiet, VecU16);
}
[[gnu::always_inline]] inline VecU16 Round(VecF x, F16) {
#if defined(__AVX512F__)
  return reinterpret_cast<VecU16>(
      _mm512_cvtps_ph(reinterpret_cast<__m512>(x), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__)
  return reinterpret_cast<VecU16>(
      _mm256_cvtps_ph(reinterpret_cast<__m256>(x), _MM_FROUND_TO_NEAREST_INT));
#else
  VecU16 bits;
  for (int i = 0; i < kLanes; ++i) {
    const NativeF16 h = static_cast<NativeF16>(x[i]);
    uint16_t b;
    std::memcpy(&b, &h, 2);
    bits[i] = b;
  }
  return bits;
#endif
}

[[gnu::always_inline]] inline void Store(float* p, VecF x) { std::memcpy(p, &x, sizeof x); }
template <class T>
[[gnu::always_inline]] inline void Store(T* p, VecF x) {
  const auto bits = Round(x, T{});
  std::memcpy(p, &bits, sizeof bits);
}

// x rounded to T and back: what a store and a load would give.
[[gnu::always_inline]] inline VecF RoundTo(VecF x, float) { return x; }
template <class T>
[[gnu::always_inline]] inline VecF RoundTo(VecF x, T) {
  T rounded[kLanes];
  Store(rounded, x);
  return Load(rounded);
}

// The first n < kLanes elements; the other lanes are 0 and not stored.
template <class T>
[[gnu::always_inline]] inline VecF LoadPart(const T* p, int64_t n) {
  T part[kLanes] = {};
  std::memcpy(part, p, static_cast<size_t>(n) * sizeof(T));
  return Load(part);
}
template <class T>
[[gnu::always_inline]] inline void StorePart(T* p, VecF x, int64_t n) {
  T part[kLanes];
  Store(part, x);
  std::memcpy(p, part, static_cast<size_t>(n) * sizeof(T));
}

// Visits [0, n) a register at a time: fn(i, lanes) with lanes == kLanes but at the end. Use with
// LoadN and StoreN, which the compiler folds for the whole registers.
template <class Fn>
[[gnu::always_inline]] inline void ForLanes(int64_t n, Fn fn) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) fn(i, kLanes);
  if (i < n) fn(i, static_cast<int>(n - i));
}
template <class T>
[[gnu::always_inline]] inline VecF LoadN(const T* p, int n) {
  return n == kLanes ? Load(p) : LoadPart(p, n);
}
template <class T>
[[gnu::always_inline]] inline void StoreN(T* p, VecF x, int n) {
  if (n == kLanes)
    Store(p, x);
  else
    StorePart(p, x, n);
}

[[gnu::always_inline]] inline float Sum(VecF x) {
  float lanes[kLanes];
  Store(lanes, x);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}
[[gnu::always_inline]] inline float Largest(VecF x) {
  float lanes[kLanes];
  Store(lanes, x);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i)
      lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
  return lanes[0];
}

// Lane i of the result is lane i ^ distance of x.
template <int kDistance>
[[gnu::always_inline]] inline VecF SwapLanes(VecF x) {
  return [&]<int... kLane>(std::integer_sequence<int, kLane...>) __attribute__((always_inline)) {
    return __builtin_shufflevector(x, x, (kLane ^ kDistance)...);
  }(std::make_integer_sequence<int, kLanes>());
}
// The lanes of b whose number has the bit `distance`, the others of a.
template <int kDistance>
[[gnu::always_inline]] inline VecF Interleave(VecF a, VecF b) {
  return [&]<int... kLane>(std::integer_sequence<int, kLane...>) __attribute__((always_inline)) {
    return __builtin_shufflevector(a, b, (kLane & kDistance ? kLanes + kLane : kLane)...);
  }(std::make_integer_sequence<int, kLanes>());
}
// Sums over groups of kCount neighboring lanes, a power of two: lane i of the result is the sum of
// the group of x[i % kCount] that lane i is in. x is overwritten. Halves the registers as often as
// there are bits in a lane's number within its group: two registers become one that has the partial
// sums of both.
template <int kCount, int kDistance = kCount / 2>
[[gnu::always_inline]] inline VecF SumEach(VecF (&x)[kCount]) {
#pragma GCC unroll 16
  for (int i = 0; i < kDistance; ++i) {
    const VecF a = x[i], b = x[i + kDistance];
    x[i] = Interleave<kDistance>(a, b) + SwapLanes<kDistance>(Interleave<kDistance>(b, a));
  }
  if constexpr (kDistance > 1)
    return SumEach<kCount, kDistance / 2>(x);
  else
    return x[0];
}

// e^x, relative error below 2e-7 (checked over all f32 in tests/core/simd_test.cc); 0 below -87.3,
// inf above 88.7. e^x = 2^n * 2^f with n = round(x log2 e); 2^f on [-1/2, 1/2] by its Taylor
// series. With a second argument e^(x + low), where |low| < 0.1 is what a rounded x lacks.
template <class... Low>
[[gnu::always_inline]] inline VecF Exp(VecF x, Low... low) {
  const VecF magic = Splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const VecF clamped = x < -87.5f ? Splat(-87.5f) : (x > 89.0f ? Splat(89.0f) : x);
  const VecF n = (clamped * 1.44269504f + magic) - magic;
  // f = x - n ln 2, ln 2 in two pieces (Cody and Waite).
  const VecF r = (((clamped - n * 0.693145752f) - n * 1.42860677e-6f) + ... + low);
  VecF p = Splat(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // 2^n in two steps, for n = 128 has no f32.
  const VecI k = __builtin_convertvector(n, VecI);
  const VecF half = reinterpret_cast<VecF>(((k >> 1) + 127) << 23);
  const VecF rest = reinterpret_cast<VecF>((k - (k >> 1) + 127) << 23);
  const VecF y = p * half * rest;
  return x < -87.3f ? VecF{} : (x == x ? y : x);
}

// tanh x, relative error below 1e-6. Near 0, where 1 - 2 / (e^2x + 1) cancels, by its Taylor
// series.
[[gnu::always_inline]] inline VecF Tanh(VecF x) {
  const VecF far = 1.0f - 2.0f / (Exp(2.0f * x) + 1.0f);
  const VecF y = x * x;
  VecF p = Splat(62.0f / 2835);
  p = p * y - 17.0f / 315;
  p = p * y + 2.0f / 15;
  p = p * y - 1.0f / 3;
  const VecF near = x + x * y * p;
  return y < 0.0625f ? near : far;
}

// The normal distribution function (1 + erf(x / sqrt 2)) / 2, relative error below 5e-7 where it is
// a normal number, x > -12.9, and 0 below -13.2. Not by erf: for x < 0 the sum cancels. The square
// comes in two pieces, as in FreeBSD's erfc: that of x's upper 12 bits is exact.
[[gnu::always_inline]] inline VecF NormalCdf(VecF x) {
  const VecF a = Abs(x), upper = Bits(Bits(a) & 0xfffff000u);
  const VecF e = Exp(-0.5f * upper * upper, -0.5f * (a - upper) * (a + upper));
  const VecF tail = e * NormalTail(1.0f / (1.0f + kNormalTailPole * a));
  return x < 0.0f ? tail : 1.0f - tail;
}

}  // namespace
}  // namespace intarsia
