// How products with weights in codes are cut on each GPU; no GPU is needed.
#include "src/matmul/cuda/quantized_plan.h"

#include <gtest/gtest.h>

#include "src/matmul/cuda/row_of_codes.h"
#include "tests/core/gpus.h"
#include "tests/core/quantized_params.h"

namespace intarsia::matmul {
namespace {

using cuda::Gpu;
using cuda::kGpus;

bool IsOfRow(const QuantizedPlan& plan) { return plan.kernel == QuantizedKernelKind::kRow; }
bool IsResident(const QuantizedPlan& plan) {
  return plan.kernel == QuantizedKernelKind::kResident ||
         plan.kernel == QuantizedKernelKind::kWideResident;
}

TEST(QuantizedPlan, EveryGpuHasRoom) {
  for (const auto& [name, device] : kGpus)
    for (const Format format :
         {Format::kU4, Format::kU4B8, Format::kE2M1, Format::kU6B32, Format::kI8})
      for (const DType dtype : {DType::kF32, DType::kBF16})
        for (const int64_t m : {1, 8, 9, 17, 300})
          for (const int64_t group : {16, 32, 96, 128, 4096}) {
            QuantizedParams p = ParamsOf(m, 4096, 4096, group);
            p.format = format, p.dtype = dtype;
            if (format == Format::kU4 || format == Format::kU6B32) p.zeros = p.scales;
            p.scales.dtype = DType::kF32;
            const QuantizedPlan plan = PlanFor(p, device);
            // Its kernels say at compile time that they have room.
            if (plan.kernel == QuantizedKernelKind::kWarpgroups) continue;
            EXPECT_GT(plan.shared_bytes, 0) << name << " m " << m;
            EXPECT_LE(plan.shared_bytes, IsResident(plan) ? kMostResidentBytes : kMostSharedBytes)
                << name << " m " << m;
            const int sums = IsOfRow(plan) ? plan.shape.rows * kMostRowWarps * 64 : 0;  // static
            EXPECT_LE(plan.shared_bytes + sums, device.shared_bytes_per_block)
                << name << " m " << m;
            EXPECT_GE(plan.tile_warps * plan.k_warps, 1) << name << " m " << m;
            EXPECT_LE(plan.tile_warps * plan.k_warps, IsResident(plan) ? kMostResidentWarps
                                                      : IsOfRow(plan)  ? kMostRowWarps
                                                                       : kMostWarps)
                << name << " m " << m;
          }
}

TEST(QuantizedPlan, WarpsOfOneRowHaveUnits) {
  for (const auto& [name, device] : kGpus)
    for (const bool gated : {false, true})
      for (const int64_t n : {32, 96, 1024, 6144, 28672, 128256})
        for (const int64_t k : {128, 136, 1000, 4096, 14336}) {
          QuantizedParams p = ParamsOf(1, n, k, 32);
          p.gating.is_there = gated;
          const QuantizedPlan plan = PlanFor(p, device);
          ASSERT_TRUE(IsOfRow(plan)) << name << " n " << n << " k " << k;
          EXPECT_LE(plan.k_warps, CeilDiv<int64_t>(k, 128));
          EXPECT_GE(plan.tile_warps * plan.k_warps, kLeastRowWarps);
          EXPECT_LE(plan.tile_warps * plan.k_warps, kMostRowWarps);
          EXPECT_FALSE(gated && plan.tile_warps % 2);
        }
}

TEST(QuantizedPlan, OneRowIsTakenAsFarAsThereIsRoom) {
  const auto is_taken = [](int64_t m, int64_t k, auto change) {
    QuantizedParams p = ParamsOf(m, 4096, k, 32);
    change(p);
    return IsOfRow(PlanFor(p, Gpu("H200")));
  };
  alignas(16) static char memory[32];
  const auto plain = [](QuantizedParams&) {};
  const auto normed = [](QuantizedParams& p) { p.norm.weight = memory; };
  EXPECT_TRUE(is_taken(1, 4096, normed));
  EXPECT_FALSE(is_taken(1, 4096, [](QuantizedParams& p) { p.norm.weight = memory + 2; }));
  EXPECT_TRUE(is_taken(1, 104, plain));
  EXPECT_FALSE(is_taken(1, 96, plain));                                     // not a whole unit
  constexpr int kMostRowColumns = MostRowBytes(1) / (64 + 4) / 4 * 4 * 32;  // and sums
  EXPECT_TRUE(is_taken(1, kMostRowColumns, plain));
  EXPECT_FALSE(is_taken(1, kMostRowColumns + 128, plain));
  EXPECT_FALSE(is_taken(1, 4096, [](QuantizedParams& p) { p.scales.dtype = DType::kF8E4M3; }));
  EXPECT_FALSE(is_taken(1, 4096, [](QuantizedParams& p) { p.scales.outer = memory; }));
}

// As fast as measured for a Llama of 8 billion parameters (docs/notebook/weights_in_codes.md).
TEST(QuantizedPlan, OneRowOfALlama) {
  const auto plan_of = [](int64_t n, int64_t k, bool normed) {
    QuantizedParams p = ParamsOf(1, n, k, 128);
    alignas(16) static char weight[16];
    if (normed) p.norm.weight = weight;
    return PlanFor(p, Gpu("H200"));
  };
  const QuantizedPlan wqkv = plan_of(6144, 4096, true), down = plan_of(4096, 14336, false);
  EXPECT_TRUE(IsOfRow(wqkv));
  EXPECT_EQ(wqkv.tile_warps, 3);
  EXPECT_EQ(wqkv.k_warps, 4);
  EXPECT_TRUE(IsOfRow(down));
  EXPECT_EQ(down.tile_warps, 1);
  EXPECT_EQ(down.k_warps, 8);
  EXPECT_TRUE(IsOfRow(plan_of(6144, 4096, false)));
}

TEST(QuantizedPlan, FewRowsShareTheKernelOfOne) {
  const auto is_taken = [](const char* gpu, int64_t m, int64_t n, int64_t k, Format format) {
    QuantizedParams p = ParamsOf(m, n, k, 32);
    p.format = format;
    if (format == Format::kE2M1) p.scales.dtype = DType::kF8E8M0;
    const QuantizedPlan plan = PlanFor(p, Gpu(gpu));
    EXPECT_TRUE(!IsOfRow(plan) || plan.shape.rows == kMostRowsOfCodes);
    return IsOfRow(plan);
  };
  EXPECT_TRUE(is_taken("A100", 2, 4096, 4096, Format::kU4B8));
  EXPECT_TRUE(is_taken("A100", 8, 4096, 4096, Format::kU4B8));
  EXPECT_TRUE(is_taken("RTX 4090", 8, 4096, 4096, Format::kU4B8));
  EXPECT_FALSE(is_taken("A100", 9, 4096, 4096, Format::kU4B8));
  EXPECT_FALSE(is_taken("A100", 8, 4096, 14336, Format::kU4B8));  // no room
  // Hopper's own are faster: by mma.sync, or the resident one but for many tiles, and e2m1.
  EXPECT_FALSE(is_taken("H200", 4, 28672, 4096, Format::kU4B8));
  EXPECT_FALSE(is_taken("H200", 4, 4096, 4096, Format::kE2M1));
  EXPECT_FALSE(is_taken("H200", 4, 4096, 4000, Format::kU4B8));
  EXPECT_TRUE(is_taken("H200", 4, 28672, 4000, Format::kU4B8));
  EXPECT_TRUE(is_taken("H200", 4, 4096, 4000, Format::kE2M1));
}

// Each warp of the resident kernel has a piece of each tile of its team, and each CTA a tile.
TEST(QuantizedPlan, ResidentWarpsHaveWork) {
  for (const Format format : {Format::kU4, Format::kU4B8, Format::kE2M1, Format::kI8})
    for (const int64_t m : {1, 2, 3, 8, 9, 16})
      for (const int64_t n : {16, 48, 4096, 6144, 28672})
        for (const int64_t k : {8, 128, 136, 1000, 4096, 14336, 40000})
          for (const int64_t group : {32, 64, 128}) {
            QuantizedParams p = ParamsOf(m, n, k, group);
            p.format = format;
            const QuantizedPlan plan = PlanFor(p, Gpu("H200"));
            if (!IsResident(plan)) continue;
            const int64_t pieces = CeilDiv<int64_t>(k, kStageColumns);
            EXPECT_GE(pieces / plan.splits, plan.k_warps) << "m " << m << " n " << n << " k " << k;
            EXPECT_GE(plan.slice_pieces, CeilDiv<int64_t>(pieces, plan.splits));
            EXPECT_GE(plan.strips, 1);
            EXPECT_LE(plan.strips, p.tiles);
            EXPECT_EQ(plan.kernel == QuantizedKernelKind::kWideResident,
                      group == 128 && format != Format::kE2M1);
          }
}

TEST(QuantizedPlan, CtasShareSumsWhereGpusHaveClusters) {
  const QuantizedParams p = ParamsOf(16, 2048, 4032, 64);  // not of whole stages
  EXPECT_EQ(PlanFor(p, Gpu("A100")).splits, 1);
  EXPECT_EQ(PlanFor(p, Gpu("RTX 4090")).splits, 1);
  EXPECT_EQ(PlanFor(p, Gpu("H200")).splits, 2);
  EXPECT_EQ(PlanFor(p, cuda::HeldBack(Gpu("H200"), 80)).splits, 1);
  EXPECT_EQ(PlanFor(ParamsOf(2, 4096, 4032, 64), Gpu("H200")).splits, 1);
  EXPECT_EQ(PlanFor(ParamsOf(2, 4096, 128, 128), Gpu("H200")).splits, 1);  // a stage alone
}

TEST(QuantizedPlan, StreamsWhatItCan) {
  const auto kernel = [](const QuantizedParams& p) { return PlanFor(p, Gpu("H200")).kernel; };
  QuantizedParams p = ParamsOf(1, 4096, 4096, 128);
  EXPECT_EQ(PlanFor(p, Gpu("A100")).kernel, QuantizedKernelKind::kRow);
  p.m = 9;
  EXPECT_EQ(PlanFor(p, Gpu("A100")).kernel, QuantizedKernelKind::kWideStream);
  EXPECT_EQ(kernel(ParamsOf(17, 1024, 4096, 128)), QuantizedKernelKind::kWideStream);
  EXPECT_EQ(kernel(ParamsOf(17, 4096, 4096, 96)), QuantizedKernelKind::kStream);
  EXPECT_EQ(kernel(ParamsOf(16, 2048, 65600, 64)), QuantizedKernelKind::kStream);  // x is long
  EXPECT_EQ(kernel(ParamsOf(2, 4096, 14336, 128)), QuantizedKernelKind::kWideResident);
  EXPECT_EQ(kernel(ParamsOf(2, 4096, 4000, 32)), QuantizedKernelKind::kResident);
  EXPECT_EQ(kernel(ParamsOf(1, 4096, 4096, 16)), QuantizedKernelKind::kAny);
  EXPECT_EQ(kernel(ParamsOf(1, 4096, 4097, 128)),
            QuantizedKernelKind::kAny);  // rows of x unaligned
  p.format = Format::kU5;
  EXPECT_EQ(kernel(p), QuantizedKernelKind::kAny);
  p = ParamsOf(1, 4096, 4096, 128);
  p.dtype = DType::kF32;
  EXPECT_EQ(kernel(p), QuantizedKernelKind::kAny);
  p = ParamsOf(1, 4096, 4096, 128);
  p.scales.outer = p.scales.data;
  EXPECT_EQ(kernel(p), QuantizedKernelKind::kWideResident);
  p.zeros = p.scales;
  EXPECT_EQ(kernel(p), QuantizedKernelKind::kAny);  // u4b8 has a point of its own
  p.format = Format::kU4;
  EXPECT_EQ(kernel(p), QuantizedKernelKind::kWideResident);
}

TEST(QuantizedPlan, StreamsWithinSharedMemory) {
  for (const auto& [name, device] : kGpus)
    for (const Format format : {Format::kU4, Format::kU4B8, Format::kE2M1, Format::kI8})
      for (const int64_t m : {1, 3, 8, 9, 17, 64, 300})
        for (const int64_t k : {32, 4096, 28672})
          for (const int64_t group : {32, 128}) {
            QuantizedParams p = ParamsOf(m, 4096, k, group);
            p.format = format;
            const QuantizedPlan plan = PlanFor(p, device);
            ASSERT_NE(plan.kernel, QuantizedKernelKind::kAny);
            if (IsResident(plan) || IsOfRow(plan) ||
                plan.kernel == QuantizedKernelKind::kWarpgroups)
              continue;
            EXPECT_LE(plan.shared_bytes, kMostSharedBytes) << name << " m " << m << " k " << k;
            EXPECT_GE(1 << plan.row_shift, std::min<int64_t>(m, plan.shape.rows));
            // A lane's registers hold as many stages as a chunk has for each warp, or a part of
            // them.
            const int of_warp = plan.chunk_stages / plan.k_warps;
            EXPECT_EQ(of_warp % StreamStages(plan.shape.rows), 0) << name << " m " << m;
            EXPECT_EQ(plan.chunk_stages % plan.k_warps, 0) << name << " m " << m;
          }
}

// As fast as measured for the layers of a Llama of 8 billion parameters
// (docs/notebook/weights_in_codes.md).
TEST(QuantizedPlan, WarpgroupsTakeRowsOfLargeMatrices) {
  const auto plan = [](QuantizedParams p) { return PlanFor(p, Gpu("H200")); };
  const auto kernel = [&](const QuantizedParams& p) { return plan(p).kernel; };
  EXPECT_EQ(plan(ParamsOf(16, 4096, 4096, 128)).splits, 7);
  EXPECT_EQ(plan(ParamsOf(16, 4096, 4096, 128)).k_warps, 1);
  EXPECT_EQ(plan(ParamsOf(16, 4096, 14336, 128)).splits, 7);
  EXPECT_EQ(plan(ParamsOf(16, 4096, 14336, 128)).k_warps, 2);
  EXPECT_EQ(plan(ParamsOf(4, 6144, 4096, 128)).splits, 4);
  EXPECT_EQ(plan(ParamsOf(64, 6144, 4096, 128)).splits, 4);
  EXPECT_EQ(plan(ParamsOf(64, 28672, 4096, 128)).splits, 1);
  EXPECT_EQ(plan(ParamsOf(64, 28672, 4096, 128)).shape.tiles, kWideTiles);
  EXPECT_EQ(plan(ParamsOf(64, 4096, 14336, 128)).splits, 5);
  EXPECT_EQ(plan(ParamsOf(64, 4096, 14336, 128)).shape.tiles, kNarrowTiles);
  EXPECT_EQ(plan(ParamsOf(256, 4096, 14336, 128)).splits, 2);
  constexpr auto kWarpgroups = QuantizedKernelKind::kWarpgroups;
  EXPECT_EQ(kernel(ParamsOf(9, 4096, 4096, 256)), kWarpgroups);
  EXPECT_EQ(kernel(ParamsOf(4, 4096, 4096, 128)), kWarpgroups);
  EXPECT_EQ(plan(ParamsOf(8, 4096, 4096, 128)).shape.rows, 8);
  EXPECT_EQ(plan(ParamsOf(9, 4096, 4096, 128)).shape.rows, 16);
  EXPECT_EQ(kernel(ParamsOf(2, 4096, 4096, 128)), kWarpgroups);
  EXPECT_NE(kernel(ParamsOf(3, 4096, 14336, 128)), kWarpgroups);
  EXPECT_EQ(kernel(ParamsOf(4, 4096, 14336, 128)), kWarpgroups);
  EXPECT_EQ(kernel(ParamsOf(2, 16896, 4096, 128)), kWarpgroups);  // 8 tiles a multiprocessor
  EXPECT_NE(kernel(ParamsOf(2, 16880, 4096, 128)), kWarpgroups);
  EXPECT_EQ(kernel(ParamsOf(2, 4096, 14336, 64)), kWarpgroups);
  EXPECT_EQ(plan(ParamsOf(8, 4096, 4096, 64)).shape.rows, 8);
  EXPECT_EQ(plan(ParamsOf(9, 4096, 4096, 64)).shape.rows, 16);
  EXPECT_EQ(plan(ParamsOf(17, 4096, 4096, 64)).shape.rows, 32);   // by wgmma
  EXPECT_NE(kernel(ParamsOf(64, 1024, 2048, 128)), kWarpgroups);  // CTAs would be few
  EXPECT_NE(PlanFor(ParamsOf(64, 4096, 4096, 128), Gpu("A100")).kernel, kWarpgroups);
  QuantizedParams p = ParamsOf(64, 4096, 4096, 128);
  p.scales.dtype = DType::kI8;
  EXPECT_NE(kernel(p), kWarpgroups);
}

TEST(QuantizedPlan, ManyRowsOfOtherFormatsAreMultipliedByWarpgroups) {
  alignas(16) static char memory[16];
  const auto plan_of = [](int64_t m, Format format, int64_t group, DType scale,
                          const Factors& zeros = {}, DType x = DType::kBF16, int64_t n = 4096) {
    QuantizedParams p = ParamsOf(m, n, 14336, group);
    p.dtype = p.out_dtype = x;
    p.format = format;
    p.scales.dtype = scale;
    p.zeros = zeros;
    p.points = false;
    return PlanFor(p, Gpu("H200"));
  };
  constexpr auto kWarpgroups = QuantizedKernelKind::kWarpgroups;
  EXPECT_EQ(plan_of(2, Format::kI8, 32, DType::kF16).kernel, kWarpgroups);
  EXPECT_NE(plan_of(1, Format::kI8, 32, DType::kF16).kernel, kWarpgroups);
  EXPECT_NE(plan_of(8, Format::kE4M3, 128, DType::kF32).kernel, kWarpgroups);
  EXPECT_EQ(plan_of(64, Format::kI8, 14336, DType::kF32).kernel, kWarpgroups);
  EXPECT_EQ(plan_of(64, Format::kE4M3, 128, DType::kF32).kernel, kWarpgroups);
  EXPECT_NE(plan_of(64, Format::kE4M3, 64, DType::kF32).kernel, kWarpgroups);
  EXPECT_EQ(plan_of(64, Format::kE2M1, 32, DType::kF8E8M0).kernel, kWarpgroups);
  EXPECT_NE(plan_of(64, Format::kE2M1, 32, DType::kF8E8M0, {}, DType::kF16).kernel, kWarpgroups);
  EXPECT_NE(plan_of(64, Format::kU4B8, 96, DType::kF16).kernel, kWarpgroups);
  // Minimums of any types find room in the registers of three warpgroups.
  for (const DType scale : {DType::kF16, DType::kF32}) {
    const Factors zeros{.data = memory, .dtype = DType::kF16};
    const QuantizedPlan minimums = plan_of(64, Format::kU4, 32, scale, zeros, DType::kBF16, 28672);
    EXPECT_EQ(minimums.kernel, kWarpgroups);
    EXPECT_EQ(minimums.shape.tiles, scale == DType::kF16 ? kWideTiles : kNarrowTiles);
  }
  const Factors outer{.data = memory, .dtype = DType::kF16, .outer = memory};
  EXPECT_NE(plan_of(64, Format::kU4, 32, DType::kF16, outer).kernel,
            kWarpgroups);  // of minimums alone
}

// What LaunchWarpgroupsOf has instances of, in clusters that a GPU takes.
TEST(QuantizedPlan, WarpgroupsAreCutAsKernelsAreBuilt) {
  alignas(16) static char memory[16];
  int found = 0;
  const auto check = [&](const QuantizedParams& p, const cuda::Device& device) {
    const QuantizedPlan plan = PlanFor(p, device);
    if (plan.kernel != QuantizedKernelKind::kWarpgroups) return;
    ++found;
    EXPECT_EQ(plan.stage_groups, kStageColumns / p.group);
    const QuantizedShape& shape = plan.shape;
    const std::string name = Text("m ", p.m, " n ", p.n(), " k ", p.k, " ", int(p.format));
    if (shape.rows == 8 || shape.rows == 16) {
      EXPECT_EQ(shape.tiles, kFewRowsTiles) << name;
      EXPECT_GE(plan.k_warps, LeastParts(shape.rows, p.format, p.points)) << name;
      EXPECT_LE(plan.k_warps, 2) << name;
    } else {
      EXPECT_TRUE(shape.rows == 32 || shape.rows == 64) << name;
      EXPECT_TRUE(shape.tiles == kNarrowTiles || shape.tiles == kWideTiles) << name;
      EXPECT_EQ(plan.k_warps, 1) << name;
    }
    EXPECT_TRUE(plan.splits >= 1 && plan.splits <= 7 && plan.splits <= p.k / kStageColumns) << name;
  };
  for (const auto& [gpu, device] : kGpus)
    for (const Format format : {Format::kU4, Format::kU4B8, Format::kU5B16, Format::kI8})
      for (const int64_t m : {1, 4, 8, 9, 16, 17, 33, 65, 300})
        for (const int64_t n : {16, 256, 4096, 6144, 28672, 262144})
          for (const int64_t k : {128, 384, 4096, 14336, 131072})
            for (const int64_t group : {128, 32}) {
              QuantizedParams p = ParamsOf(m, n, k, group);
              p.format = format;
              p.points = format == Format::kU4 && group == 128;
              if (format == Format::kU4)
                p.zeros = {.data = memory, .dtype = p.points ? DType::kU8 : DType::kF16};
              check(p, device);
            }
  EXPECT_GT(found, 1000);
}

TEST(QuantizedPlan, PointsInBytesAreReadByWarpgroups) {
  alignas(16) static char memory[16];
  const auto plan_of = [&](DType dtype, bool points, const void* outer, int64_t m = 16) {
    QuantizedParams p = ParamsOf(m, 4096, 4096, 128);
    p.format = Format::kU4, p.points = points;
    p.zeros = {.data = memory, .dtype = dtype, .outer = outer};
    return PlanFor(p, Gpu("H200"));
  };
  EXPECT_EQ(plan_of(DType::kU8, true, nullptr).kernel, QuantizedKernelKind::kWarpgroups);
  EXPECT_EQ(plan_of(DType::kU8, true, nullptr, 2).kernel, QuantizedKernelKind::kWarpgroups);
  EXPECT_EQ(plan_of(DType::kU8, true, nullptr).k_warps, 1);
  EXPECT_EQ(plan_of(DType::kU8, true, nullptr).zero_bytes, 16);
  // Minimums, and what is not a byte of its own.
  EXPECT_NE(plan_of(DType::kU8, false, nullptr).kernel, QuantizedKernelKind::kWarpgroups);
  EXPECT_NE(plan_of(DType::kI8, true, nullptr).kernel, QuantizedKernelKind::kWarpgroups);
  EXPECT_NE(plan_of(DType::kF16, true, nullptr).kernel, QuantizedKernelKind::kWarpgroups);
  EXPECT_NE(plan_of(DType::kU8, true, memory).kernel, QuantizedKernelKind::kWarpgroups);
}

// A grid's y ends at 65535 tiles.
TEST(QuantizedPlan, PassesTakeAllRows) {
  alignas(16) static char memory[16];
  const auto offset = [&](const void* at) { return static_cast<const char*>(at) - memory; };
  for (const auto& [name, device] : kGpus)
    for (const bool gated : {false, true})
      for (const DType dtype : {DType::kF32, DType::kBF16})
        for (const int64_t m : {1, 16, 4096, 65535 * 32, 65535 * 32 + 1, (1 << 30) - 1}) {
          QuantizedParams p = ParamsOf(m, 4096, 128, 32);
          p.dtype = dtype, p.out_dtype = DType::kF32;
          p.x = p.out = memory;
          p.gating.is_there = gated;
          if (!gated) p.residual = memory;
          const QuantizedPlan plan = PlanFor(p, device);
          const int64_t most = 65535 * plan.shape.rows;
          int64_t rows = 0, passes = 0;
          for (; rows < m; ++passes) {
            const QuantizedParams pass = PassFrom(p, plan, rows);
            EXPECT_LE(CeilDiv<int64_t>(pass.m, plan.shape.rows), 65535) << name << " m " << m;
            EXPECT_EQ(offset(pass.x), rows * 128 * Bytes(dtype));
            EXPECT_EQ(offset(pass.out), rows * (gated ? 2048 : 4096) * 4);
            if (gated)
              EXPECT_EQ(pass.residual, nullptr);
            else
              EXPECT_EQ(offset(pass.residual), rows * 4096 * Bytes(dtype));
            rows += pass.m;
          }
          EXPECT_EQ(rows, m) << name;
          EXPECT_EQ(passes, CeilDiv(m, most)) << name << " m " << m;
        }
}

TEST(QuantizedPlan, ReportsWhatAGpuGets) {
  const auto kernel_of = [](const char* gpu, std::string_view call) -> std::string {
    for (const auto& choice : ReportQuantizedChoices(Gpu(gpu)))
      if (choice.call == call) return choice.kernel;
    return "not reported";
  };
  EXPECT_EQ(kernel_of("A100", "weights in int4, rows: 16"), "portable, codes streamed past rows");
  EXPECT_EQ(kernel_of("H200", "weights in int4, rows: 1"), "portable, up to 8 rows");
  EXPECT_EQ(kernel_of("H200", "weights in int8, rows: 1"), "portable, up to 8 rows");
  EXPECT_EQ(kernel_of("H200", "weights in int8, rows: 16"), "Hopper");
  EXPECT_EQ(kernel_of("H200", "weights in int4, rows: 64"), "Hopper");
  EXPECT_EQ(kernel_of("H200", "weights in int4 with zeros, rows: 16"), "Hopper");
  EXPECT_EQ(kernel_of("H200", "weights in Q4_K, rows: 1"), "Hopper");
  EXPECT_EQ(kernel_of("H200", "weights in Q6_K, rows: 64"), "Hopper");
  EXPECT_EQ(kernel_of("A100", "weights in Q6_K, rows: 1"), "portable, any codes");
  EXPECT_EQ(kernel_of("H200", "weights in nvfp4, rows: 16"), "Hopper");
  EXPECT_EQ(kernel_of("A100", "weights in nvfp4, rows: 1"), "portable, up to 8 rows");
  EXPECT_EQ(kernel_of("H200", "128 experts in nvfp4, rows: 2048"), "Hopper, many rows");
  EXPECT_EQ(kernel_of("H200", "128 experts in Q4_K, rows: 16"), "Hopper");
  EXPECT_EQ(kernel_of("H200", "128 experts in Q6_K, rows: 2048"), "Hopper");
  EXPECT_EQ(kernel_of("A100", "128 experts in Q4_K, rows: 16"),
            "portable, codes streamed past rows");
  EXPECT_EQ(kernel_of("H200", "128 experts in mxfp4, rows: 16"), "Hopper");
  EXPECT_EQ(kernel_of("H200", "128 experts in int4, rows: 2048"), "Hopper, many rows");
  EXPECT_EQ(kernel_of("H200", "128 experts in int8, rows: 16"), "Hopper");
  EXPECT_EQ(kernel_of("A100", "128 experts in int8, rows: 16"),
            "portable, codes streamed past rows");
}

}  // namespace
}  // namespace intarsia::matmul
