// What a consumer does otherwise where q, K and V are e4m3: weights in e4m3, too, and sums of o by
// two levels.
#pragma once
#include "src/attention/cuda/sm90/softmax.cuh"

namespace intarsia::attention::sm90 {

// Weights become registers of operand A of m64nNk32: four bytes, of keys 2 j, 2 j + 1, 2 j + 8 and
// 2 j + 9 of 16, where transpose.cuh puts the same keys of V. Returns whether some weight of the
// warp is too large, or a NaN: codes are ordered as their numbers are, and from 0x78 on they stand
// for 256 and more.
template <int kScores>
__device__ __forceinline__ bool ToCodes(const float (&s)[kScores],
                                        uint32_t (&weights)[kScores / 4]) {
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < kScores / 4; ++i) {
    const int first = i / 2 * 8 + i % 2 * 2;
    weights[i] = cuda::ToE4M3x4(s[first], s[first + 1], s[first + 4], s[first + 5]);
    bits |= weights[i] + 0x08080808u;
  }
  return __any_sync(0xffffffffu, bits & 0x80808080u);
}

// Tensor cores add products of fp8 with some 14 bits, cutting off the rest: over thousands of keys
// sums would come out too small by percents. So every kTiles tiles o moves to sums in f32, in
// shared memory, where each thread sees its own alone.
template <class S, bool kE4M3 = S::kE4M3>
class OutSums {  // nothing in other types
 public:
  __device__ __forceinline__ OutSums(Shared<S>&, int) {}
};
template <class S>
class OutSums<S, true> {
 public:
  static constexpr int kTiles = 16;
  using Out = float[S::kDv / 2];

  __device__ __forceinline__ OutSums(Shared<S>& shared, int consumer)
      : at_(&shared.fp8.sums[consumer][0][threadIdx.x % cuda::kWarpgroupThreads]) {}

  // o is 0 afterwards.
  __device__ __forceinline__ void Take(Out& o) {
    AddTo(o);
#pragma unroll
    for (int i = 0; i < S::kDv / 8; ++i) {
      At(i) = {o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]};
      o[4 * i] = o[4 * i + 1] = o[4 * i + 2] = o[4 * i + 3] = 0.0f;
    }
    any_ = true;
  }
  // As ScaleRows does to o.
  __device__ __forceinline__ void Scale(const float (&by)[2]) {
    if (!any_) return;
#pragma unroll
    for (int i = 0; i < S::kDv / 8; ++i) {
      const float4 x = At(i);
      At(i) = {x.x * by[0], x.y * by[0], x.z * by[1], x.w * by[1]};
    }
  }
  __device__ __forceinline__ void AddTo(Out& o) const {
    if (!any_) return;
#pragma unroll
    for (int i = 0; i < S::kDv / 8; ++i) {
      const float4 x = At(i);
      o[4 * i] += x.x, o[4 * i + 1] += x.y, o[4 * i + 2] += x.z, o[4 * i + 3] += x.w;
    }
  }

 private:
  __device__ float4& At(int i) const { return at_[i * cuda::kWarpgroupThreads]; }

  float4* const at_;
  bool any_ = false;
};

// From rows of transposed V (TransposedRow) to the columns that an accumulator has.
template <int kOut>
__device__ __forceinline__ void SortColumns(float (&o)[kOut]) {
#pragma unroll
  for (int i = 0; i < kOut; i += 8) {
#pragma unroll
    for (int r = 1; r < 4; r += 2) {
      const float x = o[i + r];
      o[i + r] = o[i + r + 3];
      o[i + r + 3] = x;
    }
  }
}

}  // namespace intarsia::attention::sm90
