// Which products with GGUF's formats Hopper's kernel takes, and how they are cut; no GPU is needed.
#include <gtest/gtest.h>

#include "src/matmul/cuda/quantized_plan.h"
#include "tests/core/gpus.h"
#include "tests/core/quantized_params.h"

namespace intarsia::matmul {
namespace {

using cuda::Gpu;

// As GGUF's Q4_1, Q4_K, Q5_0, Q5_1, Q5_K and Q6_K lie in files.
TEST(QuantizedGgufPlan, HopperTakesTypesOfFiles) {
  alignas(16) static char memory[16];
  struct File {
    Format format;
    DType scale = DType::kF16, zero = DType::kOther;
    bool has_outers = false;
    int64_t group = 32, outer_groups = 8;
  };
  const auto plan_of = [&](int64_t m, const File& file, int64_t k = 14336) {
    QuantizedParams p = ParamsOf(m, 4096, k, file.group);
    p.format = file.format, p.scales.dtype = file.scale, p.points = false;
    if (file.zero != DType::kOther) p.zeros = {.data = memory, .dtype = file.zero};
    for (Factors* factors : {&p.scales, &p.zeros})
      if (file.has_outers && factors->data)
        factors->outer = memory, factors->outer_dtype = DType::kF16,
        factors->outers = p.groups / file.outer_groups;
    return PlanFor(p, Gpu("H200"));
  };
  const auto is_taken = [&](int64_t m, const File& file, int64_t k = 14336) {
    return plan_of(m, file, k).kernel == QuantizedKernelKind::kWarpgroups;
  };
  constexpr DType kU8 = DType::kU8, kI8 = DType::kI8, kF16 = DType::kF16, kNone = DType::kOther;
  const File q4_k{Format::kU4, kU8, kU8, true}, q6_k{Format::kU6B32, kI8, kNone, true, 16, 16};
  for (const File& file : {q4_k, q6_k, File{Format::kU5B16}, File{Format::kU5, kF16, kF16},
                           File{Format::kU5, kU8, kU8, true}})
    for (const int64_t m : {1, 8, 16, 17, 64, 300}) {
      const QuantizedPlan plan = plan_of(m, file);
      EXPECT_EQ(plan.kernel, QuantizedKernelKind::kWarpgroups) << m;
      EXPECT_EQ(plan.shape.tiles, m <= kMostRowsByWarps ? kFewRowsTiles : kNarrowTiles) << m;
      EXPECT_EQ(plan.k_warps, m <= kMostRowsByWarps ? 2 : 1) << m;  // many stages
    }
  EXPECT_EQ(plan_of(4, q6_k).stage_groups, 8);
  EXPECT_TRUE(is_taken(2, {Format::kU4, kF16, kF16}));
  EXPECT_FALSE(is_taken(2, {Format::kU4, DType::kF32, kF16}));  // with more rows it is
  EXPECT_TRUE(is_taken(9, {Format::kU4, DType::kF32, kF16}));
  // Outer factors of half a stage, bytes without them, and parts of a stage.
  EXPECT_FALSE(is_taken(4, {Format::kU4, kU8, kU8, true, 32, 2}));
  EXPECT_FALSE(is_taken(4, {Format::kU4, kU8, kU8}));
  EXPECT_FALSE(is_taken(4, {Format::kU6B32, kI8, kNone, true, 32}));
  EXPECT_FALSE(is_taken(4, {Format::kU5B16}, 576));
  EXPECT_TRUE(is_taken(1, q4_k, 256));  // however small
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

}  // namespace
}  // namespace intarsia::matmul
