// Which kernels products with nvfp4 take; no GPU is needed.
#include <gtest/gtest.h>

#include "src/matmul/cuda/quantized_plan.h"
#include "tests/core/gpus.h"
#include "tests/core/quantized_params.h"

namespace intarsia::matmul {
namespace {

using cuda::Gpu;

// Of bf16, with one outer scale.
QuantizedParams NvFp4ParamsOf(int64_t m, int64_t n, int64_t k) {
  QuantizedParams p = ParamsOf(m, n, k, 16);
  p.format = Format::kE2M1, p.scales.dtype = DType::kF8E4M3, p.points = false;
  p.scales.outer = p.scales.data;
  return p;
}

TEST(NvFp4Plan, HopperMultipliesRows) {
  const auto is_taken = [&](auto change, int64_t m = 4) {
    QuantizedParams p = NvFp4ParamsOf(m, 4096, 4096);
    change(p);
    return PlanFor(p, Gpu("H200")).kernel == QuantizedKernelKind::kWarpgroups;
  };
  for (const int64_t m : {2, 8, 16, 17, 64, 300})
    EXPECT_TRUE(is_taken([](QuantizedParams&) {}, m)) << m;
  EXPECT_TRUE(is_taken([](QuantizedParams& p) { p.scales.outers = 1; }));
  EXPECT_TRUE(is_taken([](QuantizedParams& p) { p.scales.outer = nullptr; }));
  EXPECT_FALSE(is_taken([](QuantizedParams& p) { p.scales.outers = 2; }));
  EXPECT_FALSE(is_taken([](QuantizedParams& p) { p.scales.dtype = DType::kF32; }));
  EXPECT_FALSE(is_taken([](QuantizedParams& p) { p.dtype = DType::kF16; }));
  EXPECT_FALSE(is_taken([](QuantizedParams& p) { p.group = 32, p.groups = 128; }));
}

TEST(NvFp4Plan, FewRowsHaveOneKernelOnEveryGpu) {
  const auto kernel = [](const char* gpu, int64_t m, int64_t k = 4096) {
    return PlanFor(NvFp4ParamsOf(m, 4096, k), Gpu(gpu)).kernel;
  };
  EXPECT_EQ(kernel("H200", 1), QuantizedKernelKind::kRow);
  for (const int64_t m : {1, 8}) EXPECT_EQ(kernel("A100", m), QuantizedKernelKind::kRow) << m;
  EXPECT_EQ(kernel("A100", 9), QuantizedKernelKind::kAny);
  EXPECT_EQ(kernel("A100", 1, 4096 - 16), QuantizedKernelKind::kAny);  // half of a block
  EXPECT_EQ(kernel("A100", 1, 96), QuantizedKernelKind::kAny);         // less than a unit
}

TEST(NvFp4Plan, HopperMultipliesGroups) {
  alignas(16) static char memory[16];
  QuantizedGroupsParams p;
  p.each = NvFp4ParamsOf(0, 1536, 2048);
  p.each.out = memory, p.x_rows = 2048;
  p.groups.all = p.groups.count = 128;
  const auto kernel = [&](int64_t rows) {
    p.groups.m = rows;
    return PlanForGroups(p, Gpu("H200")).kernel;
  };
  EXPECT_EQ(kernel(8), QuantizedKernelKind::kGroupsHopper);
  EXPECT_EQ(kernel(12 * 128), QuantizedKernelKind::kGroupsWarpgroups);
  p.each.dtype = DType::kF16;
  EXPECT_EQ(kernel(12 * 128), QuantizedKernelKind::kGroupsHopper);
  p.each.dtype = DType::kF32;
  EXPECT_EQ(kernel(8), QuantizedKernelKind::kAny);
  p.each.dtype = DType::kBF16, p.each.scales.outers = 2;
  EXPECT_EQ(kernel(8), QuantizedKernelKind::kAny);
  p.each.scales.outers = 1, p.each.k = 2048 - 16, p.each.groups = 127;
  EXPECT_EQ(kernel(8), QuantizedKernelKind::kAny);
}

}  // namespace
}  // namespace intarsia::matmul
