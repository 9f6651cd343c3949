// What kernels write into a paged cache, and read from it.
#pragma once
#include <type_traits>

#include "src/core/cache_layout.h"
#include "src/core/cuda/vec.cuh"

namespace intarsia::cuda {

// What a thread moves at once, a cell: kCount elements as they are.
template <class T, int kCount>
struct Copy {
  using In = Pack<T, kCount>;
  using Out = In;
  using Element = T;  // what the cache is counted in
  static constexpr int kElements = kCount;
  static __device__ __forceinline__ Out Stored(const In& x, float) { return x; }
};

// Divides by one scale, to nearest even wherever an fp8 type can tell: quotients beyond 2^20
// saturate in both, those below 2^-20 are 0. A division of each number would be most of the
// kernel's instructions. Instead one reciprocal serves all, and two corrections by the residual
// make of a product with it the quotient: Markstein, "Computation of elementary functions on the
// IBM RISC System/6000 processor", IBM Journal of Research and Development 34, 1990.
class Divider {
 public:
  __device__ __forceinline__ explicit Divider(float scale) {
    // So that no residual of a quotient that matters is lost below the least f32.
    const float size = fabsf(scale);
    factor_ = size >= 0x1p80f ? 0x1p-80f : size <= 0x1p-80f ? 0x1p80f : 1.0f;
    scale_ = scale * factor_;
    reciprocal_ = __frcp_rn(scale_);
  }

  template <int kCount>
  __device__ __forceinline__ void Divide(Pack<float, kCount>& x) const {
    if (factor_ != 1.0f) {
#pragma unroll
      for (float& number : x.at) number *= factor_;
    }
#pragma unroll
    for (float& number : x.at) number = Quotient(number);
  }

 private:
  __device__ __forceinline__ float Quotient(float x) const {
    const float product = x * reciprocal_;
    const float near = fmaf(fmaf(-product, scale_, x), reciprocal_, product);
    const float quotient = fmaf(fmaf(-near, scale_, x), reciprocal_, near);
    const float size = fabsf(product);
    return size > 0x1p-20f && size < 0x1p20f ? quotient : product;  // -0, infinities, NaN
  }

  float factor_, scale_, reciprocal_;
};

// A cell of an fp8 cache: satfinite(x / scale), to nearest even.
template <class T, class F8, int kCount>
struct Quantize {
  using In = Pack<T, kCount>;
  using Out = Pack<F8, kCount>;
  using Element = F8;
  static constexpr int kElements = kCount;
  static __device__ __forceinline__ Out Stored(const In& in, float scale) {
    Pack<float, kCount> x;
#pragma unroll
    for (int i = 0; i < kCount; ++i) x.at[i] = ToFloat(in.at[i]);
    if (scale != 1.0f) Divider(scale).Divide(x);
    return FromFloats<F8>(x);
  }
};

// A cell out of an fp8 cache: round(scale * x).
template <class F8, class T, int kCount>
struct Dequantize {
  using In = Pack<F8, kCount>;
  using Out = Pack<T, kCount>;
  static constexpr int kElements = kCount;
  static __device__ __forceinline__ Out Stored(const In& in, float scale) {
    Pack<float, kCount> x = ToFloats(in);
#pragma unroll
    for (float& number : x.at) number *= scale;
    return FromFloats<T>(x);
  }
};

// A load that the compiler does not put off until it is sure that somebody needs the value. Evicted
// first: nobody reads these keys and values again.
template <class In>
__device__ __forceinline__ In LoadHere(const In* from) {
  using Word = std::conditional_t<sizeof(In) == 16, uint4,
                                  std::conditional_t<sizeof(In) == 4, uint32_t, uint16_t>>;
  const Word word = __ldcs(reinterpret_cast<const Word*>(from));
  In in;
  memcpy(&in, &word, sizeof in);
  return in;
}

// A slot's place in a cache.
struct Place {
  bool exists;  // or nothing is to be written
  int64_t layer, page, slot;
};
__device__ __forceinline__ Place PlaceOf(const CacheView& cache, int64_t slot) {
  const int64_t slots = cache.num_pages * cache.page_size, layer = cache.layer ? *cache.layer : 0;
  // A 64-bit division takes several times as long.
  const int64_t page = slots <= INT32_MAX
                           ? static_cast<uint32_t>(slot) / static_cast<uint32_t>(cache.page_size)
                           : slot / cache.page_size;
  return {slot >= 0 && slot < slots && layer >= 0 && layer < cache.num_layers, layer, page,
          slot - page * cache.page_size};
}

}  // namespace intarsia::cuda
