// From products q . k to weights: scale, softcap, alibi and sinks, all to base 2.
#pragma once
#include "src/attention/cuda/ragged.cuh"
#include "src/core/cuda/ptx.cuh"

namespace intarsia::attention {

// What the scores of a sequence and KV head are scaled by.
__device__ __forceinline__ float ScoreScale(const Params& p, int seq, int kv_head) {
  return p.scale * p.q_scale.At(seq, kv_head) * p.k_scale.At(seq, kv_head);
}

// softcap * tanh(y) of a score x = softcap * y, in whatever unit: `far` but for scores near 0.
// There tanh by exponentials cancels, to an error that a large softcap makes one of whole scores,
// and a series takes its place. Both have a relative error below 2e-6.
__device__ __forceinline__ float Capped(float x, float y, float far) {
  const float square = y * y;
  const float near = x * (1.0f + square * (square * (2.0f / 15) - 1.0f / 3));
  return fabsf(y) < 0.125f ? near : far;
}

// From q . k to the logarithm to base 2 of a weight, x. Usually that is a product with a positive
// factor, which the kernel can fold into its exponentials; otherwise it computes x and takes a
// factor of 1.
template <DType kType>
class Logit {
 public:
  __device__ Logit(const Params& p, float scale)
      : scale_(scale), cap_(p.softcap), alibi_(p.alibi_slopes.data) {}
  __device__ void Scale(float by) { scale_ *= by; }
  __device__ bool folds() const { return !capped() && !alibi_ && scale_ > 0; }
  __device__ float factor() const { return folds() ? scale_ * kLog2e : 1.0f; }

  template <int kSize>
  __device__ __forceinline__ void Apply(float (&dots)[kSize]) const {
    const float factor = scale_ * kLog2e;
    if (capped()) {
      // The quotient is 0 for a cap above 2^126, which then counts as none.
      const float inner = __fdividef(scale_, cap_), outer = cap_ * kLog2e;
#pragma unroll
      for (float& x : dots) x = Capped(x * factor, x * inner, Far(x * inner, outer));
    } else {
#pragma unroll
      for (float& x : dots) x *= factor;
    }
  }

 private:
  __device__ bool capped() const { return cap_ > 0; }
  // outer * tanh(y). tanh.approx's relative error of 2^-11 would become 2 % of a weight under a
  // softcap of 50. For 16-bit operands an error that is small beside 1 is enough.
  static __device__ __forceinline__ float Far(float y, float outer) {
    if constexpr (kType == DType::kF32) return outer * tanhf(y);
    return outer - __fdividef(2.0f * outer, 1.0f + cuda::Exp2(2.0f * kLog2e * y));
  }

  float scale_, cap_;
  bool alibi_;
};

// What alibi takes from the scores of a packed row.
class Alibi {
 public:
  __device__ Alibi(const Params& p, const Sequence& sequence, int kv_head, int row) {
    const int group = GroupSize(p), token = TokenOfRow(p, row);
    slope_ = p.alibi_slopes.At(sequence.index, kv_head * group + row - token * group) * kLog2e;
    position_ = static_cast<int>(PositionOf(sequence, token));
  }
  __device__ float At(int key) const { return slope_ * static_cast<float>(abs(position_ - key)); }

 private:
  float slope_;
  int position_;
};

// The logarithm to base 2 of a head's own term of the denominator.
__device__ __forceinline__ float SinkOf(const Params& p, int64_t head) {
  return p.sinks ? p.sinks[head] * kLog2e : -INFINITY;
}

}  // namespace intarsia::attention
