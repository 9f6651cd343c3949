// Element types on the device: conversion to and from f32, and vector accesses.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "src/core/dtype.h"

namespace intarsia::cuda {

template <DType kType>
struct DeviceType;
template <>
struct DeviceType<DType::kF32> {
  using type = float;
};
template <>
struct DeviceType<DType::kF16> {
  using type = __half;
};
template <>
struct DeviceType<DType::kBF16> {
  using type = __nv_bfloat16;
};
template <>
struct DeviceType<DType::kF8E4M3> {
  using type = __nv_fp8_e4m3;
};
template <>
struct DeviceType<DType::kF8E5M2> {
  using type = __nv_fp8_e5m2;
};
template <>
struct DeviceType<DType::kI8> {
  using type = int8_t;
};
template <DType kType>
using DeviceT = typename DeviceType<kType>::type;

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(__half x) { return __half2float(x); }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float ToFloat(__nv_fp8_e4m3 x) { return static_cast<float>(x); }
__device__ __forceinline__ float ToFloat(__nv_fp8_e5m2 x) { return static_cast<float>(x); }
__device__ __forceinline__ float ToFloat(int8_t x) { return static_cast<float>(x); }

// To nearest even. The 8-bit types saturate, infinities too; NaN stays NaN (0x7f) and becomes 0 in
// an integer.
template <class T>
__device__ __forceinline__ T FromFloat(float x);
template <>
__device__ __forceinline__ float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __half FromFloat<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 FromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

template <>
__device__ __forceinline__ __nv_fp8_e4m3 FromFloat<__nv_fp8_e4m3>(float x) {
  return __nv_fp8_e4m3(x);
}
template <>
__device__ __forceinline__ __nv_fp8_e5m2 FromFloat<__nv_fp8_e5m2>(float x) {
  return __nv_fp8_e5m2(x);
}
template <>
__device__ __forceinline__ int8_t FromFloat<int8_t>(float x) {
  // PTX ISA, "cvt": .sat limits the result to the destination's range.
  int32_t code;
  asm("cvt.rni.sat.s8.f32 %0, %1;\n" : "=r"(code) : "f"(x));
  return static_cast<int8_t>(code);
}

// The bytes that one instruction can load or store, at most.
inline constexpr int kMaxAccessBytes = 16;

// kCount neighboring elements, loaded and stored at once, or 16 bytes at a time. Operands of one
// kernel that differ in width share the count: bf16 in 16 bytes is fp8 in 8.
template <class T, int kCount>
struct alignas(kCount * sizeof(T) < kMaxAccessBytes ? kCount * sizeof(T) : kMaxAccessBytes) Pack {
  static constexpr int kSize = kCount;
  T at[kCount];
};

// One of the four words, by a number that is known when code is compiled.
__device__ __forceinline__ uint32_t WordOf(const uint4& x, int i) {
  return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

// Two numbers of 16 bits, as instructions take them.
template <class T>
using PairOf = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;

// f32 to the elements of a pack. Pairs: an instruction converts two numbers to 16 or 8 bits.
template <class T, int kCount>
__device__ __forceinline__ Pack<T, kCount> FromFloats(const Pack<float, kCount>& x) {
  constexpr bool kE4M3 = std::is_same_v<T, __nv_fp8_e4m3>, kE5M2 = std::is_same_v<T, __nv_fp8_e5m2>;
  Pack<T, kCount> y;
  if constexpr (kCount % 2 == 0 && (kE4M3 || kE5M2)) {
    Pack<__nv_fp8x2_storage_t, kCount / 2> pairs;
#pragma unroll
    for (int j = 0; j < kCount / 2; ++j)
      pairs.at[j] = __nv_cvt_float2_to_fp8x2(make_float2(x.at[2 * j], x.at[2 * j + 1]),
                                             __NV_SATFINITE, kE4M3 ? __NV_E4M3 : __NV_E5M2);
    memcpy(&y, &pairs, sizeof y);
  } else if constexpr (kCount % 2 == 0 && sizeof(T) == 2) {
    Pack<PairOf<T>, kCount / 2> pairs;
#pragma unroll
    for (int j = 0; j < kCount / 2; ++j) {
      if constexpr (std::is_same_v<T, __half>)
        pairs.at[j] = __floats2half2_rn(x.at[2 * j], x.at[2 * j + 1]);
      else
        pairs.at[j] = __floats2bfloat162_rn(x.at[2 * j], x.at[2 * j + 1]);
    }
    memcpy(&y, &pairs, sizeof y);
  } else {
#pragma unroll
    for (int j = 0; j < kCount; ++j) y.at[j] = FromFloat<T>(x.at[j]);
  }
  return y;
}

template <class T, int kCount>
__device__ __forceinline__ Pack<float, kCount> ToFloats(const Pack<T, kCount>& x) {
  Pack<float, kCount> y;
#pragma unroll
  for (int j = 0; j < kCount; ++j) y.at[j] = ToFloat(x.at[j]);
  return y;
}

// To T and back.
template <class T, int kCount>
__device__ __forceinline__ Pack<float, kCount> Rounded(const Pack<float, kCount>& x) {
  return ToFloats(FromFloats<T>(x));
}

// A pack by its bytes.
template <class T, int kBytes = kMaxAccessBytes>
using Vec = Pack<T, kBytes / static_cast<int>(sizeof(T))>;

// Whether rows of n elements, from each of these addresses on, can be read as Pack<T, kCount>.
template <int kCount, class... T>
bool AllInPacks(int64_t n, const T*... pointers) {
  return n % kCount == 0 &&
         ((reinterpret_cast<uintptr_t>(pointers) % alignof(Pack<T, kCount>) == 0) && ...);
}

// Whether rows `row_bytes` apart, from each of these addresses on, can be read 16 bytes at a time.
template <class... Pointers>
bool AllAligned16(int64_t row_bytes, const Pointers*... pointers) {
  return row_bytes % 16 == 0 && ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace intarsia::cuda
