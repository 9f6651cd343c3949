// Pieces of rows on their way through registers: eight neighbouring elements from global to shared
// memory where they cannot be copied as they lie, and four columns of a result back.
#pragma once
#include "src/attention/tile.cuh"
#include "src/core/cuda/fp8.cuh"

namespace intarsia::attention {

template <class T>
using Eight = cuda::Pack<T, 8>;

// Elements index ... index + 7 of an array of T; all at once if its rows are aligned.
template <class T>
__device__ __forceinline__ Eight<T> LoadEight(const void* data, int64_t index, bool aligned) {
  const T* const from = static_cast<const T*>(data) + index;
  if (aligned) return *reinterpret_cast<const Eight<T>*>(from);
  Eight<T> values;
#pragma unroll
  for (int i = 0; i < 8; ++i) values.at[i] = from[i];
  return values;
}

template <class T>
__device__ __forceinline__ Eight<float> ToFloats(const Eight<T>& values) {
  Eight<float> floats;
#pragma unroll
  for (int i = 0; i < 8; ++i) floats.at[i] = cuda::ToFloat(values.at[i]);
  return floats;
}

// The same from an array of any dtype, as f32.
__device__ __forceinline__ Eight<float> LoadEightFloats(const void* data, DType dtype,
                                                        int64_t index, bool aligned) {
  const auto load = [&]<DType kType>() {
    return ToFloats(LoadEight<cuda::DeviceT<kType>>(data, index, aligned));
  };
  if (dtype == DType::kBF16) return load.template operator()<DType::kBF16>();
  if (dtype == DType::kF16) return load.template operator()<DType::kF16>();
  if (dtype == DType::kF8E4M3) return load.template operator()<DType::kF8E4M3>();
  if (dtype == DType::kF8E5M2) return load.template operator()<DType::kF8E5M2>();
  return load.template operator()<DType::kF32>();
}

// To columns column ... column + 7, a multiple of 8, of a row of a tile in shared memory.
template <class Rows, class T>
__device__ __forceinline__ void StoreEight(char* tile, int row, int column,
                                           const Eight<T>& values) {
  constexpr int kBytes = alignof(Eight<T>);
  const int byte = column * static_cast<int>(sizeof(T));
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(values)) / kBytes; ++i) {
    const int at = byte + i * kBytes;
    using Part = cuda::Vec<T, kBytes>;
    *reinterpret_cast<Part*>(tile + Rows::Offset(row, at / 16) + at % 16) =
        reinterpret_cast<const Part*>(&values)[i];
  }
}

// out[index ... index + 3] = factor * o
template <class T>
__device__ __forceinline__ void StoreColumnsAs(void* out, int64_t index, const float (&o)[4],
                                               float factor, bool aligned) {
  T* const to = static_cast<T*>(out) + index;
  cuda::Pack<T, 4> values;
#pragma unroll
  for (int i = 0; i < 4; ++i) values.at[i] = cuda::FromFloat<T>(o[i] * factor);
  if (aligned) {
    *reinterpret_cast<decltype(values)*>(to) = values;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = values.at[i];
  }
}
__device__ __forceinline__ void StoreColumns(void* out, DType dtype, int64_t index,
                                             const float (&o)[4], float factor, bool aligned) {
  if (dtype == DType::kBF16)
    StoreColumnsAs<__nv_bfloat16>(out, index, o, factor, aligned);
  else if (dtype == DType::kF16)
    StoreColumnsAs<__half>(out, index, o, factor, aligned);
  else
    StoreColumnsAs<float>(out, index, o, factor, aligned);
}

}  // namespace intarsia::attention
