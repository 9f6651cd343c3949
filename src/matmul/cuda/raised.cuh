// x for products with codes that are 2^kStep times what they stand for (BareCodes). In bf16 those
// underflow f32, so x is multiplied by 2^104, by 2^48 if any of x overflows, by 1 if that does,
// too. Of a product below 2^-97 some bits are lost, of one below 2^-120 all; where x is raised by
// less, these bounds are still below 2^-40 times the largest |x|.
#pragma once
#include "src/matmul/cuda/codes.cuh"

namespace intarsia::matmul {

// 2^exponent.
constexpr INTARSIA_HOST_DEVICE float PowerOfTwo(int exponent) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(127 + exponent) << 23);
}

template <DType kType, int kStep>
class RaisedX {
 public:
  static constexpr bool kIsRaised = kType == DType::kBF16 && kStep != 0;

  // A pair of numbers, raised.
  __device__ __forceinline__ uint32_t Pair(uint32_t pair) {
    if constexpr (kIsRaised) {
      constexpr uint32_t kBoth = 0x10001, kMantissaBits = 7;
      const uint32_t power = static_cast<uint32_t>(127 + raise_) << kMantissaBits;
      pair = decoding::MultiplyPairs<kType>(pair, power * kBoth);
      overflow_ |= (pair & 0x7f807f80u) + 0x00800080u;  // signs, where exponents are all ones
    }
    return pair;
  }
  __device__ __forceinline__ bool HasOverflowed() const { return (overflow_ & 0x80008000u) != 0; }
  // Whether all threads that share x have to raise it again, by less. `any`: whether it overflowed
  // for one of them.
  __device__ __forceinline__ bool LowerRaise(bool any) {
    if (!any || raise_ == 0) return false;
    raise_ = raise_ == kMost ? kLess : 0;
    overflow_ = 0;
    return true;
  }

  // A sum of raised numbers times 2^kStep. f32 has no such number, and the sum may overflow: half
  // of the step multiplies each number, half of it their sum.
  static constexpr float kHalfStep = PowerOfTwo(kStep - kStep / 2);
  static __device__ __forceinline__ float Stepped(float sum) { return sum * PowerOfTwo(kStep / 2); }
  // A sum of products of raised numbers and codes, as it would be of x and what codes stand for.
  __device__ __forceinline__ float Lowered(float sum) const {
    const int up = -kStep - (kIsRaised ? raise_ : 0);  // never negative
    return sum * PowerOfTwo(up / 2) * PowerOfTwo(up - up / 2);
  }

 private:
  static constexpr int kMost = 104, kLess = 48;
  int raise_ = kMost;
  uint32_t overflow_ = 0;
};

}  // namespace intarsia::matmul
