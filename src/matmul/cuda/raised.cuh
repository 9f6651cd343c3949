// x for products with codes that are 2^kStep times what they stand for (BareCodes). In bf16 those
// are too small for f32, so x is multiplied by 2^104 first. Where that makes it infinite it is by
// less, 2^48, and then by 1: what f32 loses is far below the largest product each time.
#pragma once
#include <bit>

#include "src/matmul/cuda/codes.cuh"

namespace intarsia::matmul {

// 2^exponent.
constexpr INTARSIA_HOST_DEVICE float PowerOfTwo(int exponent) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(127 + exponent) << 23);
}

template <DType kType, int kStep>
class Raised {
 public:
  static constexpr bool kIsRaised = kType == DType::kBF16 && kStep != 0;

  // A pair of numbers, raised.
  __device__ __forceinline__ uint32_t Pair(uint32_t pair) {
    if constexpr (kIsRaised) {
      constexpr uint32_t kBoth = 0x10001, kMantissaBits = 7;
      const uint32_t power = static_cast<uint32_t>(127 + raise_) << kMantissaBits;
      pair = decoding::MultiplyPairs<kType>(pair, power * kBoth);
      infinite_ |= (pair & 0x7f807f80u) + 0x00800080u;  // signs, where exponents are all ones
    }
    return pair;
  }
  // Whether all threads that share x have to raise it again, by less. `any`: of their IsInfinite().
  __device__ __forceinline__ bool Lessens(bool any) {
    if (!any || raise_ == 0) return false;
    raise_ = raise_ == kMost ? kLess : 0;
    infinite_ = 0;
    return true;
  }
  __device__ __forceinline__ bool IsInfinite() const { return (infinite_ & 0x80008000u) != 0; }

  // A sum of raised numbers times 2^kStep, from their sum times kHalfStep.
  static constexpr float kHalfStep = PowerOfTwo(kStep - kStep / 2);
  static __device__ __forceinline__ float Stepped(float sum) { return sum * PowerOfTwo(kStep / 2); }
  // A sum of products of raised numbers and codes, as it would be of x and what codes stand for.
  __device__ __forceinline__ float Lowered(float sum) const {
    return sum * PowerOfTwo(-kStep / 2) * PowerOfTwo(kStep / 2 - kStep - (kIsRaised ? raise_ : 0));
  }

 private:
  static constexpr int kMost = 104, kLess = 48;
  int raise_ = kMost;
  uint32_t infinite_ = 0;
};

}  // namespace intarsia::matmul
