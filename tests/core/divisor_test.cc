#include "src/core/divisor.h"

#include <gtest/gtest.h>

#include <random>

namespace intarsia {
namespace {

TEST(Divisor, DividesAsTheProcessorDoes) {
  constexpr uint32_t kEnd = uint32_t{1} << 31;
  std::mt19937 random(1);
  for (const uint32_t n : {1u, 2u, 3u, 7u, 16u, 42u, 8192u, 1000003u, kEnd / 2, kEnd - 1}) {
    const Divisor divisor(n);
    for (const uint32_t x : {0u, 1u, n - 1, n, 2 * n - 1, kEnd - 1}) {
      if (x < kEnd) {
        ASSERT_EQ(divisor.Divide(x), x / n) << x << " " << n;
      }
    }
    for (int i = 0; i < 10000; ++i) {
      const uint32_t x = static_cast<uint32_t>(random()) % kEnd;
      ASSERT_EQ(divisor.Divide(x), x / n) << x << " " << n;
    }
  }
}

}  // namespace
}  // namespace intarsia
