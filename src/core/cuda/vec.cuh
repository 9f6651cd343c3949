// Element types on the device: conversion to and from f32, and 16-byte accesses.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

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
template <DType kType>
using DeviceT = typename DeviceType<kType>::type;

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(__half x) { return __half2float(x); }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }

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

// kBytes' worth of elements, loaded and stored at once.
template <class T, int kBytes = 16>
struct alignas(kBytes) Vec {
  static constexpr int kSize = kBytes / static_cast<int>(sizeof(T));
  T at[kSize];
};

// Whether rows `row_bytes` apart, from each of these addresses on, can be read 16 bytes at a time.
template <class... Pointers>
bool AllAligned16(int64_t row_bytes, const Pointers*... pointers) {
  return row_bytes % 16 == 0 && ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

}  // namespace intarsia::cuda
