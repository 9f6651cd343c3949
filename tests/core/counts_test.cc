// Counts that kernels of products hold; no GPU is needed.
#include "src/matmul/cuda/counts.h"

#include <gtest/gtest.h>

namespace intarsia::matmul {
namespace {

TEST(Counts, TheFirstThatIsTooLargeIsNamed) {
  EXPECT_TRUE(FitCounts({{"m", 0}, {"k", (1 << 30) - 1}}).ok());
  EXPECT_EQ(FitCounts({{"m", 1}, {"k", 1 << 30}, {"n", 1 << 30}}).message,
            "k is 1073741824, expected less than 1073741824 on GPUs");
}

}  // namespace
}  // namespace intarsia::matmul
