// Packs of numbers on their way to codes, on the device.
#pragma once
#include <type_traits>

#include "src/core/cuda/rows.cuh"
#include "src/core/cuda/vec.cuh"
#include "src/quant/scaling.h"

namespace intarsia::cuda {

// An int8 that numbers become by rounding toward zero.
struct TruncatedI8 {
  int8_t value;
};
template <>
__device__ __forceinline__ TruncatedI8 FromFloat<TruncatedI8>(float x) {
  return {FromFloat<int8_t>(truncf(x))};
}

// round(scaled) + azp as f32, which a code of int8 then takes the nearest of. NaN counts as 0.
__device__ __forceinline__ float Shifted(float scaled, int32_t azp) {
  const int32_t rounded = min(max(__float2int_rn(scaled), -kLargestTerm), kLargestTerm);
  return static_cast<float>(rounded + min(max(azp, -kLargestTerm), kLargestTerm));
}

// max |x|, NaN left out.
template <class T, int kCount>
__device__ __forceinline__ float LargestAbs(const Pack<T, kCount>& x) {
  float largest = 0.0f;
  if constexpr (kCount % 2 == 0 && sizeof(T) == 2) {  // two at once
    using T2 = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
    const auto* pairs = reinterpret_cast<const T2*>(x.at);
    T2 of_pairs = __habs2(pairs[0]);
#pragma unroll
    for (int j = 1; j < kCount / 2; ++j) of_pairs = __hmax2(of_pairs, __habs2(pairs[j]));
    largest = Larger{}(Larger{}(largest, ToFloat(of_pairs.x)), ToFloat(of_pairs.y));
  } else {
#pragma unroll
    for (int j = 0; j < kCount; ++j) largest = Larger{}(largest, fabsf(ToFloat(x.at[j])));
  }
  return largest;
}

// The scaling of a row whose largest number is known, NaN aside.
//
// The compiler's division takes some fifteen instructions. Here many numbers have one divisor d:
// with r = 1 / d and q = x * r, both rounded, q - (q * d - x) * r is x / d to the nearest, since
// fma has the remainder exactly (Markstein, IBM J. Res. Dev. 34(1), 1990; it was also compared with
// x / d over all mantissas of x for 20,000 of d). That holds while nothing on the way leaves the
// normal numbers: for the d below, and quotients from 2^-11 to 2^11. Smaller ones, whose remainder
// may leave them, round to the code 0 either way. The signs are such that -0 stays -0.
class RowScaling {
 public:
  __device__ __forceinline__ RowScaling(const Scaling& scaling, float largest)
      : scaling_(scaling),
        reciprocal_(1.0f / scaling.factor),
        by_remainder_(scaling.divide && scaling.factor >= 0x1p-80f && scaling.factor <= 0x1p80f &&
                      largest <= 0x1p11f * scaling.factor) {}

  template <int kCount>
  __device__ __forceinline__ void Apply(Pack<float, kCount>& x) const {
    if (by_remainder_) {
#pragma unroll
      for (float& y : x.at) {
        const float q = y * reciprocal_;
        y = __fmaf_rn(__fmaf_rn(q, scaling_.factor, -y), -reciprocal_, q);
      }
    } else {
#pragma unroll
      for (float& y : x.at) y = scaling_(y);
    }
  }

 private:
  Scaling scaling_;
  float reciprocal_;
  bool by_remainder_;
};

// The codes of numbers that go through a Scaling or RowScaling.
template <class Code, class T, int kCount, class Scales>
__device__ __forceinline__ Pack<Code, kCount> Quantized(const Pack<T, kCount>& x,
                                                        const Scales& scaling) {
  Pack<float, kCount> scaled = ToFloats(x);
  if constexpr (std::is_same_v<Scales, RowScaling>) {
    scaling.Apply(scaled);
  } else {
#pragma unroll
    for (float& y : scaled.at) y = scaling(y);
  }
  return FromFloats<Code>(scaled);
}

}  // namespace intarsia::cuda
