// The activations in f32 on the device, for results that are rounded to T. As in activations_cpu.h.
#pragma once
#include <type_traits>

#include "src/activation/constants.h"
#include "src/core/cuda/ptx.cuh"
#include "src/core/cuda/vec.cuh"
#include "src/core/normal_tail.h"

namespace intarsia::cuda {

// e^-a for a >= 0, to a few ulp; for T of 16 bits off by a * 2^-23 relatively, and 0 where it would
// be subnormal.
template <class T>
__device__ __forceinline__ float ExpMinus(float a) {
  constexpr float kLog2E = 1.4426950408889634f;
  if constexpr (std::is_same_v<T, float>)
    return expf(-a);
  else
    return Exp2(-kLog2E * a);
}

// x / (1 + e^-v), where v has the sign of x. By e^-|v|, which never overflows. The division is one
// of 2 ulp: with an exact one, instructions and not memory would bound the kernels.
template <class T>
__device__ __forceinline__ float TimesSigmoid(float x, float v) {
  const float e = ExpMinus<T>(fabsf(v));
  return __fdividef(v < 0.0f ? x * e : x, 1.0f + e);
}

// The normal distribution function, relative error a few 1e-7 plus that of ExpMinus.
template <class T>
__device__ __forceinline__ float NormalCdf(float x) {
  // Beyond 15 the tail is 0 in f32.
  const float a = fminf(fabsf(x), 15.0f), square = a * a;
  float e = ExpMinus<T>(0.5f * square);
  // What rounding has taken from the square.
  if constexpr (std::is_same_v<T, float>) e *= 1.0f - 0.5f * fmaf(a, a, -square);
  const float tail = e * NormalTail(__fdividef(1.0f, 1.0f + kNormalTailPole * a));
  return x < 0.0f ? tail : 1.0f - tail;
}

template <class T>
struct Silu {
  __device__ __forceinline__ float operator()(float x) const { return TimesSigmoid<T>(x, x); }
};
template <class T>
struct Gelu {
  __device__ __forceinline__ float operator()(float x) const { return x * NormalCdf<T>(x); }
};
template <class T>
struct GeluTanh {
  __device__ __forceinline__ float operator()(float x) const {
    return TimesSigmoid<T>(x, x * (kGeluTanhLinear + kGeluTanhCubic * (x * x)));
  }
};

template <class T>
struct Logistic {
  __device__ __forceinline__ float operator()(float x) const {
    return TimesSigmoid<T>(x, kGeluQuickSlope * x);
  }
};
template <class T>
struct FatRelu {
  float threshold;
  __device__ __forceinline__ float operator()(float x) const { return x <= threshold ? 0.0f : x; }
};

// NaN stays.
__device__ __forceinline__ float AtMost(float x, float limit) { return x > limit ? limit : x; }
__device__ __forceinline__ float Within(float x, float limit) {
  return x < -limit ? -limit : AtMost(x, limit);
}
// To T and back.
template <class T>
__device__ __forceinline__ float RoundTo(float x) {
  return ToFloat(FromFloat<T>(x));
}

template <class T>
struct ClampedSilu {
  float limit, alpha, beta;
  __device__ __forceinline__ float operator()(float gate, float up) const {
    const float g = RoundTo<T>(AtMost(gate, limit));
    return RoundTo<T>(TimesSigmoid<T>(g, alpha * g)) * (Within(up, limit) + beta);
  }
};
template <class T>
struct SwigluOai {
  static constexpr bool kMayBeInTurn = true;
  float alpha, limit;
  __device__ __forceinline__ float operator()(float gate, float up) const {
    const float g = AtMost(gate, limit);
    return TimesSigmoid<T>(g, alpha * g) * (Within(up, limit) + 1.0f);
  }
};

template <class T>
__device__ __forceinline__ float HalfTimesOnePlus(float x, float t) {
  return RoundTo<T>(RoundTo<T>(0.5f * x) * RoundTo<T>(1.0f + t));
}
template <class T>
struct GeluNewSteps {
  __device__ __forceinline__ float operator()(float x) const {
    const float cube = RoundTo<T>(RoundTo<T>(x * x) * x);
    // By name: in f32 the compiler would make an FMA of product and sum.
    const float sum = RoundTo<T>(__fadd_rn(x, RoundTo<T>(kGeluCubic * cube)));
    return HalfTimesOnePlus<T>(x, RoundTo<T>(tanhf(RoundTo<T>(kGeluScale * sum))));
  }
};
template <class T>
struct GeluFastSteps {
  __device__ __forceinline__ float operator()(float x) const {
    const float square = RoundTo<T>(RoundTo<T>(kGeluCubic * x) * x);
    const float u = RoundTo<T>(RoundTo<T>(kGeluScale * x) * RoundTo<T>(__fadd_rn(1.0f, square)));
    return HalfTimesOnePlus<T>(x, RoundTo<T>(tanhf(u)));
  }
};

}  // namespace intarsia::cuda
