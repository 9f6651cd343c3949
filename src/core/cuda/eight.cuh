// Eight neighboring elements of a row, on their way through registers from global to shared
// memory, where a row cannot be copied as it lies.
#pragma once
#include "src/core/cuda/vec.cuh"

namespace intarsia::cuda {

template <class T>
using Eight = Pack<T, 8>;

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

// The same from an array of any dtype, as f32.
__device__ __forceinline__ Eight<float> LoadEightFloats(const void* data, DType dtype,
                                                        int64_t index, bool aligned) {
  const auto load = [&]<DType kType>() {
    return ToFloats(LoadEight<DeviceT<kType>>(data, index, aligned));
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
    using Part = Vec<T, kBytes>;
    *reinterpret_cast<Part*>(tile + Rows::Offset(row, at / 16) + at % 16) =
        reinterpret_cast<const Part*>(&values)[i];
  }
}

}  // namespace intarsia::cuda
