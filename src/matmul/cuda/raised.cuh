// x for products with codes that are 2^kStep times what they stand for (BareCodes). In bf16 those
// underflow f32, so a row of x is multiplied by 2^104, by 2^48 if any of it overflows, by 1 if it
// does then. Of a product below 2^-97 some bits are lost, of one below 2^-120 all; where x is
// raised by less, these bounds are still below 2^-40 times the largest |x|.
#pragma once
#include "src/matmul/cuda/codes.cuh"

namespace intarsia::matmul {

// Each of up to 32 rows has a power of its own: none depends on another. Sets of rows are bits.
template <DType kType, int kStep>
class RaisedX {
 public:
  // x is not raised by more than codes are too small. nvfp4's are large enough.
  static constexpr int kMost = 104, kLess = 48;
  static constexpr bool kIsRaised = kType == DType::kBF16 && -kStep >= kMost;

  // Numbers of a row, in pairs, raised.
  __device__ __forceinline__ uint4 Pairs(const uint4& pairs, int row) {
    if constexpr (!kIsRaised) return pairs;
    constexpr uint32_t kBoth = 0x10001, kMantissaBits = 7;
    const uint32_t power = static_cast<uint32_t>(127 + RaiseOf(row)) << kMantissaBits;
    uint32_t overflow = 0;
    const auto raised = [&](uint32_t pair) {
      pair = decoding::MultiplyPairs<kType>(pair, power * kBoth);
      overflow |= (pair & 0x7f807f80u) + 0x00800080u;  // signs, where exponents are all ones
      return pair;
    };
    const uint4 all = {raised(pairs.x), raised(pairs.y), raised(pairs.z), raised(pairs.w)};
    if (overflow & 0x80008000u) overflowed_ |= 1u << row;
    return all;
  }
  // Rows of which this thread has numbers that overflowed.
  __device__ __forceinline__ uint32_t Overflowed() const { return overflowed_; }
  // Whether all threads that share x have to raise it again, some rows by less: those that
  // overflowed for any of them.
  __device__ __forceinline__ bool LowerRaises(uint32_t overflowed) {
    const uint32_t lower = overflowed & ~least_;
    least_ |= lower & less_, less_ |= lower;
    overflowed_ = 0;
    return lower != 0;
  }

  // A sum of raised numbers times 2^kStep. f32 has no such number, and the sum may overflow: half
  // of the step multiplies each number, half of it their sum.
  static constexpr float kHalfStep = PowerOfTwo(kStep - kStep / 2);
  static __device__ __forceinline__ float Stepped(float sum) { return sum * PowerOfTwo(kStep / 2); }
  // A sum of products of raised numbers and codes, as it would be of x and what codes stand for.
  __device__ __forceinline__ float Lowered(float sum, int row) const {
    const int up = -kStep - (kIsRaised ? RaiseOf(row) : 0);  // never negative
    return sum * PowerOfTwo(up / 2) * PowerOfTwo(up - up / 2);
  }

 private:
  __device__ __forceinline__ int RaiseOf(int row) const {
    return least_ >> row & 1 ? 0 : less_ >> row & 1 ? kLess : kMost;
  }
  uint32_t overflowed_ = 0, less_ = 0, least_ = 0;
};

}  // namespace intarsia::matmul
