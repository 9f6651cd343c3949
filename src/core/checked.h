// Products and sums of sizes that a caller chose, where nothing else bounds them.
#pragma once
#include <cstdint>
#include <initializer_list>

namespace intarsia {

// No size is above this: the sum of two such sizes still fits.
inline constexpr int64_t kMostSize = int64_t{1} << 62;

// The product of numbers >= 0; kMostSize if it is above that.
constexpr int64_t BoundedProduct(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  bool beyond = false;
  for (const int64_t factor : factors) {
    if (factor == 0) return 0;
    beyond |= factor > kMostSize / product;
    if (!beyond) product *= factor;
  }
  return beyond ? kMostSize : product;
}

// The sum of numbers >= 0; kMostSize if it is above that.
constexpr int64_t BoundedSum(std::initializer_list<int64_t> terms) {
  int64_t sum = 0;
  for (const int64_t term : terms) sum = term > kMostSize - sum ? kMostSize : sum + term;
  return sum;
}

}  // namespace intarsia
