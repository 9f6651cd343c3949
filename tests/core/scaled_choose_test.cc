// Which kernels of products of codes each GPU gets, and in which order CTAs take tiles; no GPU is
// needed.
#include <gtest/gtest.h>

#include <vector>

#include "src/matmul/cuda/scaled_choice.h"
#include "tests/core/gpus.h"

namespace intarsia::matmul {
namespace {

using cuda::Gpu;
using cuda::kGpus;

ScaledParams ParamsOf(int64_t m, int64_t n, int64_t k, DType dtype = DType::kF8E4M3) {
  return {.dtype = dtype, .m = m, .n = n, .k = k};
}

TEST(ScaledChoose, EveryGpuRunsEveryShape) {
  for (const auto& [name, device] : kGpus)
    for (const DType dtype : {DType::kF8E4M3, DType::kI8})
      for (const int64_t m : {0, 1, 7, 100, 3000})
        for (const int64_t k : {0, 1, 24, 2880, 200000}) {
          const ScaledParams p = ParamsOf(m, k + 3, k, dtype);
          EXPECT_TRUE(CanRun(Choose(p, device), p, device)) << name << " m=" << m << " k=" << k;
        }
}

TEST(ScaledChoose, FollowsRowsAndColumns) {
  EXPECT_EQ(Choose(ParamsOf(1, 4096, 4096), Gpu("H200")), ScaledKernel::kStream);
  EXPECT_EQ(Choose(ParamsOf(16, 4096, 4096), Gpu("H200")), ScaledKernel::kStream);
  EXPECT_EQ(Choose(ParamsOf(16, 28672, 4096), Gpu("H200")), ScaledKernel::kWarpgroups);
  EXPECT_EQ(Choose(ParamsOf(16, 28672, 4096), Gpu("A100")), ScaledKernel::kStream);
  EXPECT_EQ(Choose(ParamsOf(17, 4096, 4096), Gpu("H200")), ScaledKernel::kWarpgroups);
  EXPECT_EQ(Choose(ParamsOf(17, 4096, 4096), Gpu("A100")), ScaledKernel::kTiles);
}

TEST(ScaledChoose, HopperTakesWhatItsCopiesAndSumsHold) {
  const auto& h200 = Gpu("H200");
  EXPECT_EQ(Choose(ParamsOf(64, 4096, 4104), h200), ScaledKernel::kTiles);
  EXPECT_EQ(Choose(ParamsOf(64, 4100, 4096), h200), ScaledKernel::kTiles);
  EXPECT_EQ(Choose(ParamsOf(64, 4096, 131072), h200), ScaledKernel::kWarpgroups);
  // Sums of 131072 products of -128 and -128 do not fit into 32 bits.
  EXPECT_EQ(Choose(ParamsOf(64, 4096, 131072, DType::kI8), h200), ScaledKernel::kTiles);
  EXPECT_EQ(Choose(ParamsOf(64, 4096, 131056, DType::kI8), h200), ScaledKernel::kWarpgroups);
}

TEST(ScaledTiles, EachOnce) {
  for (const int64_t rows : {1, 7, 8, 9, 20})
    for (const int64_t columns : {1, 3, 32}) {
      const ScaledTiles tiles{rows, columns};
      std::vector<int> seen(rows * columns);
      for (int64_t i = 0; i < tiles.count(); ++i) {
        const auto [row, column] = tiles.At(i);
        ASSERT_TRUE(0 <= row && row < rows && 0 <= column && column < columns) << i;
        ++seen[row * columns + column];
      }
      EXPECT_EQ(seen, std::vector<int>(rows * columns, 1)) << rows << " x " << columns;
    }
}

}  // namespace
}  // namespace intarsia::matmul
