// Division by a number that the host knows (Granlund and Montgomery 1994, figure 4.1).
#pragma once
#include <bit>
#include <cstdint>

#include "src/core/index_vector.h"  // INTARSIA_HOST_DEVICE

namespace intarsia {

class Divisor {
 public:
  explicit constexpr Divisor(int64_t n)  // 1 <= n < 2^31
      : shift_(std::bit_width(static_cast<uint32_t>(n - 1))),
        multiplier_(static_cast<uint32_t>((((uint64_t{1} << shift_) - n) << 32) / n + 1)) {}
  // x < 2^31
  [[gnu::always_inline]] INTARSIA_HOST_DEVICE constexpr uint32_t Divide(uint32_t x) const {
    return static_cast<uint32_t>(((uint64_t{x} * multiplier_) >> 32) + x) >> shift_;
  }

 private:
  int shift_;
  uint32_t multiplier_;
};

}  // namespace intarsia
