// Four columns of a result, from registers to global memory.
#pragma once
#include "src/core/cuda/vec.cuh"

namespace intarsia::attention {

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
