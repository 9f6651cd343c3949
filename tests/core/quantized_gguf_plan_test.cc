// Which products with GGUF's formats Hopper's kernel takes, and how they are cut; no GPU is needed.
#include <gtest/gtest.h>

#include <array>

#include "src/matmul/cuda/quantized_plan.h"
#include "tests/core/gpus.h"
#include "tests/core/quantized_params.h"

namespace intarsia::matmul {
namespace {

using cuda::Gpu;

constexpr DType kU8 = DType::kU8, kI8 = DType::kI8, kF16 = DType::kF16, kNone = DType::kOther;
alignas(16) char memory[16];

// As GGUF's Q4_1, Q4_K, Q5_0, Q5_1, Q5_K and Q6_K lie in files.
struct File {
  Format format;
  DType scale = kF16, zero = kNone;
  bool has_outers = false;
  int64_t group = 32, outer_groups = 8;

  QuantizedParams Params(int64_t m, int64_t k) const {
    QuantizedParams p = ParamsOf(m, 4096, k, group);
    p.format = format, p.scales.dtype = scale, p.points = false;
    if (zero != kNone) p.zeros = {.data = memory, .dtype = zero};
    for (Factors* factors : {&p.scales, &p.zeros})
      if (has_outers && factors->data)
        factors->outer = memory, factors->outer_dtype = kF16,
        factors->outers = p.groups / outer_groups;
    return p;
  }
};
constexpr File kQ4K{Format::kU4, kU8, kU8, true}, kQ5K{Format::kU5, kU8, kU8, true};
constexpr File kQ6K{Format::kU6B32, kI8, kNone, true, 16, 16};

TEST(QuantizedGgufPlan, HopperTakesTypesOfFiles) {
  const auto plan_of = [](int64_t m, const File& file, int64_t k = 14336) {
    return PlanFor(file.Params(m, k), Gpu("H200"));
  };
  const auto is_taken = [&](int64_t m, const File& file, int64_t k = 14336) {
    return plan_of(m, file, k).kernel == QuantizedKernelKind::kWarpgroups;
  };
  for (const File& file : {kQ4K, kQ6K, File{Format::kU5B16}, File{Format::kU5, kF16, kF16}, kQ5K})
    for (const int64_t m : {1, 8, 16, 17, 64, 300}) {
      const QuantizedPlan plan = plan_of(m, file);
      EXPECT_EQ(plan.kernel, QuantizedKernelKind::kWarpgroups) << m;
      EXPECT_EQ(plan.shape.tiles, m <= kMostRowsByWarps ? kFewRowsTiles : kNarrowTiles) << m;
      EXPECT_EQ(plan.k_warps, m <= kMostRowsByWarps ? 2 : 1) << m;  // many stages
    }
  EXPECT_EQ(plan_of(4, kQ6K).stage_groups, 8);
  EXPECT_TRUE(is_taken(2, {Format::kU4, kF16, kF16}));
  EXPECT_FALSE(is_taken(2, {Format::kU4, DType::kF32, kF16}));  // with more rows it is
  EXPECT_TRUE(is_taken(9, {Format::kU4, DType::kF32, kF16}));
  // Outer factors of half a stage, bytes without them, and parts of a stage.
  EXPECT_FALSE(is_taken(4, {Format::kU4, kU8, kU8, true, 32, 2}));
  EXPECT_FALSE(is_taken(4, {Format::kU4, kU8, kU8}));
  EXPECT_FALSE(is_taken(4, {Format::kU6B32, kI8, kNone, true, 32}));
  EXPECT_FALSE(is_taken(4, {Format::kU5B16}, 576));
  EXPECT_TRUE(is_taken(1, kQ4K, 256));  // however small
  // Outer factors: of scales alone, of another type, not at 16 bytes, and more of zeros.
  const auto is_taken_with = [&](auto change) {
    QuantizedParams p = ParamsOf(4, 4096, 4096, 32);
    p.format = Format::kU4, p.points = false;
    p.scales = p.zeros = {memory, kU8, memory, kF16, p.groups / 8};
    change(p);
    return PlanFor(p, Gpu("H200")).kernel == QuantizedKernelKind::kWarpgroups;
  };
  EXPECT_TRUE(is_taken_with([](QuantizedParams&) {}));
  EXPECT_FALSE(is_taken_with([](QuantizedParams& p) { p.zeros.outer = nullptr; }));
  EXPECT_FALSE(is_taken_with([](QuantizedParams& p) { p.scales.outer_dtype = DType::kBF16; }));
  EXPECT_FALSE(is_taken_with([&](QuantizedParams& p) { p.zeros.outer = memory + 2; }));
  EXPECT_FALSE(is_taken_with([](QuantizedParams& p) { p.zeros.outers /= 2; }));
  EXPECT_FALSE(is_taken_with([](QuantizedParams& p) { p.scales.outers = p.zeros.outers = 0; }));
  EXPECT_FALSE(is_taken_with([](QuantizedParams& p) { p.points = true; }));
  EXPECT_FALSE(is_taken_with([](QuantizedParams& p) { p.dtype = DType::kF32; }));
}

TEST(QuantizedGgufPlan, HopperTakesGroupsInTypesOfFiles) {
  const auto plan_of = [](int64_t rows, const File& file, DType dtype = DType::kBF16,
                          int64_t k = 2048) {
    QuantizedGroupsParams p;
    p.each = file.Params(0, k);
    p.each.out = memory, p.each.dtype = dtype;
    p.x_rows = 2048;
    p.groups.all = p.groups.count = 128, p.groups.m = rows;
    return PlanForGroups(p, Gpu("H200"));
  };
  const auto is_taken = [&](auto... call) {
    return plan_of(512, call...).kernel == QuantizedKernelKind::kGroupsHopper;
  };
  for (const File& file : {kQ4K, kQ5K, kQ6K, File{Format::kU5B16}}) {
    const int tiles = file.format == Format::kU4 ? 4 : 2;
    for (const auto& [mean, rows] : {std::array{4, 8}, {12, 16}, {100, 32}}) {
      const QuantizedPlan plan = plan_of(128 * mean, file);
      EXPECT_EQ(plan.kernel, QuantizedKernelKind::kGroupsHopper) << mean;
      EXPECT_EQ(plan.shape, (QuantizedShape{rows, tiles})) << mean;
    }
    EXPECT_TRUE(is_taken(file, kF16));
    EXPECT_FALSE(is_taken(file, DType::kF32));
  }
  EXPECT_EQ(plan_of(4, kQ4K).shape, kFewUnits);
  EXPECT_TRUE(is_taken(File{Format::kU5B16}, kF16, 2048 + 32));
  EXPECT_FALSE(is_taken(File{Format::kU5B16}, kF16, 2048 + 16));
  // Minimums in f16, and longer groups.
  for (const Format format : {Format::kU4, Format::kU5}) {
    EXPECT_EQ(plan_of(512, File{format, kF16, kF16}).shape, (QuantizedShape{8, 2}));
    EXPECT_TRUE(is_taken(File{format, kF16, kF16}));
    EXPECT_FALSE(is_taken(File{format, kF16, kF16}, kF16, 2048 + 32));
  }
  EXPECT_FALSE(is_taken(File{Format::kU4, kU8, kU8, true, 64}));
  EXPECT_FALSE(is_taken(File{Format::kU5B16, kF16, kNone, false, 128}));
}

}  // namespace
}  // namespace intarsia::matmul
