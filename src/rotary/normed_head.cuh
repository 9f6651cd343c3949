// The norm of a head before its rotation, for kernels that differ in where heads come from and go
// to. fused_qk_norm_rope.h has the formula.
#pragma once
#include "src/core/cuda/vec.cuh"
#include "src/core/tensor_view.h"

namespace intarsia::cuda {

// The weights of query and key heads, [d] of T or f32 each.
struct HeadNorms {
  const void *q_weight = nullptr, *k_weight = nullptr;
  bool q_is_f32 = false, k_is_f32 = false;
  float eps = 0.0f;

  HeadNorms() = default;
  HeadNorms(const TensorView& q, const TensorView& k, float added)
      : q_weight(q.data),
        k_weight(k.data),
        q_is_f32(q.dtype == DType::kF32),
        k_is_f32(k.dtype == DType::kF32),
        eps(added) {}
};

// A head of d elements, normed, in f32; by a warp, whose shared memory `normed` is.
template <class T, int kCount>
__device__ __forceinline__ void NormHead(const HeadNorms& norms, bool is_key, const T* head, int d,
                                         float* normed) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float squares = 0.0f;
  for (int i = lane; i < d / kCount; i += 32) {
    const auto x = ToFloats(reinterpret_cast<const Pack<T, kCount>*>(head)[i]);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      normed[i * kCount + j] = x.at[j];
      squares += x.at[j] * x.at[j];
    }
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    squares += __shfl_xor_sync(0xffffffffu, squares, offset);
  const float rstd = rsqrtf(squares / static_cast<float>(d) + norms.eps);
  // No array of both: a run-time index would move the arguments to local memory.
  const void* const weights = is_key ? norms.k_weight : norms.q_weight;
  const bool f32 = is_key ? norms.k_is_f32 : norms.q_is_f32;
  __syncwarp();
  for (int i = lane; i < d; i += 32)
    normed[i] *= rstd * (f32 ? static_cast<const float*>(weights)[i]
                             : ToFloat(static_cast<const T*>(weights)[i]));
  __syncwarp();
}

}  // namespace intarsia::cuda
