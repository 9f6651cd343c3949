// Packs of numbers on their way to codes, on the device.
#pragma once
#include "src/core/cuda/rows.cuh"
#include "src/core/cuda/vec.cuh"
#include "src/quant/scaling.h"

namespace intarsia::cuda {

template <class T, int kCount>
__device__ __forceinline__ float LargestAbs(const Pack<T, kCount>& x) {
  float largest = 0.0f;
#pragma unroll
  for (int j = 0; j < kCount; ++j) largest = Larger{}(largest, fabsf(ToFloat(x.at[j])));
  return largest;
}

template <class Code, class T, int kCount>
__device__ __forceinline__ Pack<Code, kCount> Quantised(const Pack<T, kCount>& x,
                                                        const Scaling& scaling) {
  Pack<float, kCount> scaled;
#pragma unroll
  for (int j = 0; j < kCount; ++j) scaled.at[j] = scaling(ToFloat(x.at[j]));
  return FromFloats<Code>(scaled);
}

}  // namespace intarsia::cuda
