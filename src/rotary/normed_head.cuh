// The norm of a head before its rotation, for kernels that differ in where heads come from and go
// to. fused_qk_norm_rope.h has the formula. A warp has a head: in its registers, if the head is
// of a usual size and turned whole, else in shared memory.
#pragma once
#include <utility>

#include "src/core/cuda/rows.cuh"
#include "src/core/cuda/vec.cuh"
#include "src/core/tensor_view.h"
#include "src/rotary/turn.cuh"

namespace intarsia::cuda {

constexpr int kHeadWarps = 4;  // of a block, a head each

// Which of tokens' `heads` heads this warp has, as (token, head).
__device__ __forceinline__ std::pair<int64_t, int> HeadOfWarp(int heads) {
  const int64_t number = static_cast<int64_t>(blockIdx.x) * kHeadWarps + threadIdx.x / 32,
                token = number / heads;
  return {token, static_cast<int>(number - token * heads)};
}

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

// A head of 64 * kPairs elements that is turned in pairs (i, i + d/2): each lane has kPairs of
// them.
template <class T, int kPairs>
class HeldHead {
 public:
  using V = Pack<T, kPairs>;
  static constexpr int kHalf = 32 * kPairs;
  V low, high;

  // The column of `low`; `high` is kHalf further.
  static __device__ __forceinline__ int At() { return static_cast<int>(threadIdx.x) % 32 * kPairs; }

  __device__ __forceinline__ explicit HeldHead(const T* head)
      : low(*reinterpret_cast<const V*>(head + At())),
        high(*reinterpret_cast<const V*>(head + At() + kHalf)) {}

  __device__ __forceinline__ void NormAndTurn(const HeadNorms& norms, bool is_key,
                                              const Rotation& rotation, int64_t position) {
    auto x = ToFloats(low), y = ToFloats(high);
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      squares = fmaf(x.at[j], x.at[j], squares);
      squares = fmaf(y.at[j], y.at[j], squares);
    }
    const float rstd = rsqrtf(SumOfWarp(squares) / (2.0f * kHalf) + norms.eps);
    const Angles<kPairs> angles = AnglesOf<kPairs>(rotation, position, At());
    const void* const weights = is_key ? norms.k_weight : norms.q_weight;
    if (is_key ? norms.k_is_f32 : norms.q_is_f32)
      Scale(x, y, static_cast<const float*>(weights), rstd);
    else
      Scale(x, y, static_cast<const T*>(weights), rstd);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) TurnPair(x.at[j], y.at[j], angles.cos[j], angles.sin[j]);
    low = FromFloats<T>(x);
    high = FromFloats<T>(y);
  }

 private:
  using F = Pack<float, kPairs>;

  template <class W>
  static __device__ __forceinline__ void Scale(F& x, F& y, const W* weights, float rstd) {
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      x.at[j] *= rstd * ToFloat(weights[At() + j]);
      y.at[j] *= rstd * ToFloat(weights[At() + kHalf + j]);
    }
  }
};

// The kPairs of a HeldHead that heads of d elements are; 0: none. The caller has seen that they
// have 16 bits and can be read in vectors of 16 bytes.
inline int PairsHeld(const Rotation& rotation, int64_t d) {
  const bool whole = rotation.is_neox && rotation.first == 0 && rotation.r == d;
  return whole && (d == 128 || d == 256) ? static_cast<int>(d / 64) : 0;
}

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
  const float rstd = rsqrtf(SumOfWarp(squares) / static_cast<float>(d) + norms.eps);
  // No array of both: a run-time index would move the arguments to local memory.
  const void* const weights = is_key ? norms.k_weight : norms.q_weight;
  const bool f32 = is_key ? norms.k_is_f32 : norms.q_is_f32;
  __syncwarp();
  for (int i = lane; i < d; i += 32)
    normed[i] *= rstd * (f32 ? static_cast<const float*>(weights)[i]
                             : ToFloat(static_cast<const T*>(weights)[i]));
  __syncwarp();
}

// Turns a head that NormHead left, and hands `store` its columns, kCount at a time.
template <class T, int kCount, class Store>
__device__ __forceinline__ void TurnNormed(const Rotation& rotation, int64_t position, int d,
                                           const float* normed, const Store& store) {
  using F = Pack<float, kCount>;
  const int pairs = PairItems<F>(rotation), items = pairs + (d - rotation.r) / kCount;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < items; i += 32) {
    if (i < pairs) {
      const auto turned = Turn<float, F>(rotation, normed, position, i * kCount);
      store(turned.low_at, FromFloats<T>(turned.low));
      store(turned.high_at, FromFloats<T>(turned.high));
    } else {
      const int column = CopiedAt<F>(rotation, i - pairs);
      store(column, FromFloats<T>(*reinterpret_cast<const F*>(normed + column)));
    }
  }
}

}  // namespace intarsia::cuda
