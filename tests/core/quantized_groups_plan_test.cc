// How products of groups of rows with weights in codes are cut on each GPU; no GPU is needed.
#include <gtest/gtest.h>

#include "src/matmul/cuda/quantized_plan.h"
#include "tests/core/gpus.h"
#include "tests/core/quantized_params.h"

namespace intarsia::matmul {
namespace {

using cuda::Gpu;
using cuda::kGpus;

TEST(QuantizedGroupsPlan, GroupsOfAnyNumberOfRowsHaveRoom) {
  for (const auto& [name, device] : kGpus)
    for (const Format format : {Format::kU4, Format::kE2M1, Format::kU6B32, Format::kI8})
      for (const int64_t m : {0, 1, 64, 4096})
        for (const int64_t group : {16, 32, 128}) {
          QuantizedGroupsParams p;
          p.each = ParamsOf(m, 4096, 4096, group);
          p.each.format = format;
          p.groups.all = p.groups.count = 32;
          p.groups.m = m;
          const QuantizedPlan plan = PlanForGroups(p, device);
          // Hopper's kernels say at compile time that they have room.
          if (plan.kernel == QuantizedKernelKind::kGroupsHopper ||
              plan.kernel == QuantizedKernelKind::kGroupsWarpgroups)
            continue;
          EXPECT_GT(plan.shared_bytes, 0) << name << " m " << m;
          EXPECT_LT(plan.shared_bytes, device.shared_bytes_per_block) << name << " m " << m;
          EXPECT_GE(plan.tile_warps, 1) << name << " m " << m;
          EXPECT_LE(plan.tile_warps * plan.k_warps, kMostWarps) << name << " m " << m;
        }
}

// As fast as measured for the first products of Qwen3-30B-A3B (docs/notebook/weights_in_codes.md).
TEST(QuantizedGroupsPlan, ManyGroupsOfFewRowsHaveSmallCtas) {
  QuantizedGroupsParams p;
  p.each = ParamsOf(0, 1536, 2048, 128);
  p.groups.all = p.groups.count = 128;
  p.groups.m = 128;
  const QuantizedPlan many = PlanForGroups(p, Gpu("A100"));
  EXPECT_EQ(many.tile_warps, 4);
  EXPECT_EQ(many.k_warps, 1);
  p.groups.m = 8;
  EXPECT_GT(PlanForGroups(p, Gpu("A100")).k_warps, 1);  // few CTAs: warps share sums
}

TEST(QuantizedGroupsPlan, GroupsOnHopperGoByTheirRows) {
  QuantizedGroupsParams p;
  p.each = ParamsOf(0, 1536, 2048, 128);
  p.groups.all = p.groups.count = 128;
  const auto shape = [&](int64_t rows) {
    p.groups.m = rows;
    const QuantizedPlan plan = PlanForGroups(p, Gpu("H200"));
    EXPECT_EQ(plan.kernel, QuantizedKernelKind::kGroupsHopper) << rows;
    return plan.shape;
  };
  EXPECT_EQ(shape(8), kFewUnits);
  EXPECT_EQ(shape(512), (QuantizedShape{8, 4}));
  EXPECT_EQ(shape(6 * 128), (QuantizedShape{8, 4}));
  EXPECT_EQ(shape(7 * 128), (QuantizedShape{16, 4}));
  EXPECT_EQ(shape(11 * 128), (QuantizedShape{16, 4}));
  // Other formats, and powers of two of other groups, are the portable kernels'.
  p.each.format = Format::kE2M1;
  EXPECT_NE(PlanForGroups(p, Gpu("H200")).kernel, QuantizedKernelKind::kGroupsHopper);
  p.each.group = 32, p.each.groups = 64, p.each.scales.dtype = DType::kF8E8M0;
  EXPECT_EQ(PlanForGroups(p, Gpu("H200")).kernel, QuantizedKernelKind::kGroupsHopper);
  EXPECT_NE(PlanForGroups(p, Gpu("A100")).kernel, QuantizedKernelKind::kGroupsHopper);
  p.each.format = Format::kU4;
  EXPECT_NE(PlanForGroups(p, Gpu("H200")).kernel, QuantizedKernelKind::kGroupsHopper);
}

TEST(QuantizedGroupsPlan, EightBitsOnHopper) {
  alignas(16) static char memory[16];
  for (const Format format : {Format::kI8, Format::kE4M3}) {
    QuantizedGroupsParams p;
    p.each = ParamsOf(0, 1536, 2048, 128);
    p.each.out = memory, p.each.format = format;
    p.x_rows = 2048;
    p.groups.all = p.groups.count = 128;
    const auto plan = [&](int64_t rows) {
      p.groups.m = rows;
      return PlanForGroups(p, Gpu("H200"));
    };
    EXPECT_EQ(plan(8).kernel, QuantizedKernelKind::kGroupsHopper);
    EXPECT_EQ(plan(8).shape, (QuantizedShape{8, 2}));
    EXPECT_EQ(plan(7 * 128).shape, (QuantizedShape{16, 2}));
    EXPECT_EQ(plan(12 * 128).shape, kFewWarpgroupsRows);
    EXPECT_EQ(plan(21 * 128).shape, kManyWarpgroupsRows);
    p.each.group = 64, p.each.groups = 32;  // of whole stages alone for e4m3
    EXPECT_EQ(plan(8).kernel == QuantizedKernelKind::kGroupsHopper, format == Format::kI8);
    EXPECT_NE(plan(21 * 128).kernel, QuantizedKernelKind::kGroupsWarpgroups);
    p.each.scales.dtype = DType::kF32;  // a stage has no room for them
    p.each.group = 32, p.each.groups = 64;
    EXPECT_NE(plan(8).kernel, QuantizedKernelKind::kGroupsHopper);
    p.each.scales.dtype = DType::kF16;
    p.each.group = 2048, p.each.groups = 1;  // a scale a row
    EXPECT_EQ(plan(8).kernel, QuantizedKernelKind::kGroupsHopper);
    p.each.zeros = {.data = memory, .dtype = DType::kI8};
    EXPECT_EQ(plan(8).kernel, QuantizedKernelKind::kAny);
  }
}

TEST(QuantizedGroupsPlan, GroupsOfManyRowsAreMultipliedByWarpgroups) {
  alignas(16) static char memory[16];
  QuantizedGroupsParams p;
  p.each = ParamsOf(0, 1536, 2048, 128);
  p.each.out = memory;
  p.x_rows = 2048;
  p.groups.all = p.groups.count = 128;
  const auto plan = [&](int64_t rows) {
    p.groups.m = rows;
    return PlanForGroups(p, Gpu("H200"));
  };
  EXPECT_EQ(plan(11 * 128).kernel, QuantizedKernelKind::kGroupsHopper);
  EXPECT_EQ(plan(12 * 128).kernel, QuantizedKernelKind::kGroupsWarpgroups);
  EXPECT_EQ(plan(12 * 128).shape, kFewWarpgroupsRows);
  EXPECT_EQ(plan(21 * 128).shape, kManyWarpgroupsRows);
  // Results are stored 16 bytes at a time, and rows of x counted in as many.
  p.each.out = memory + 2;
  EXPECT_EQ(plan(16384).shape, (QuantizedShape{32, 4}));
  p.each.out = memory;
  p.each.rows.data = memory;
  p.x_rows = int64_t{1} << 30;
  EXPECT_EQ(plan(16384).shape, (QuantizedShape{32, 4}));
  p.x_rows = 2048;
  EXPECT_EQ(plan(16384).kernel, QuantizedKernelKind::kGroupsWarpgroups);
  // Sums of narrow groups are scaled one by one; f16 does not hold all scaled codes of mxfp4.
  p.each.group = 64, p.each.groups = 32;
  EXPECT_EQ(plan(16384).shape, (QuantizedShape{32, 4}));
  p.each.format = Format::kE2M1;
  p.each.group = 32, p.each.groups = 64, p.each.scales.dtype = DType::kF8E8M0;
  EXPECT_EQ(plan(16384).kernel, QuantizedKernelKind::kGroupsWarpgroups);
  p.each.dtype = DType::kF16;
  EXPECT_EQ(plan(16384).shape, (QuantizedShape{32, 4}));
}

TEST(QuantizedGroupsPlan, ExpertsWithPointsInBytesAreReadByHoppersKernel) {
  alignas(16) static char memory[16];
  const auto kernel_of = [&](int64_t group, DType dtype) {
    QuantizedGroupsParams p;
    p.each = ParamsOf(16, 4096, 4096, group);
    p.each.format = Format::kU4, p.each.points = true;
    p.each.zeros = {.data = memory, .dtype = dtype};
    p.groups.all = p.groups.count = 32, p.groups.m = 16;
    return PlanForGroups(p, Gpu("H200")).kernel;
  };
  EXPECT_EQ(kernel_of(128, DType::kU8), QuantizedKernelKind::kGroupsHopper);
  EXPECT_NE(kernel_of(64, DType::kU8), QuantizedKernelKind::kGroupsHopper);
  EXPECT_NE(kernel_of(128, DType::kF16), QuantizedKernelKind::kGroupsHopper);
}

}  // namespace
}  // namespace intarsia::matmul
