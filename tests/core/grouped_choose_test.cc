// Which kernels of grouped products each GPU gets, and how many tiles groups can need; no GPU is
// needed.
#include <gtest/gtest.h>

#include <random>

#include "src/matmul/cuda/choose.h"
#include "tests/core/gpus.h"

namespace intarsia::matmul {
namespace {

using cuda::Gpu;
using cuda::kGpus;

GroupedParams ParamsOf(DType dtype, int64_t m, int64_t groups, int64_t k = 2048, int64_t n = 1536) {
  GroupedParams p;
  p.dtype = p.out_dtype = dtype;
  p.k = k, p.n = n, p.x_rows = m;
  p.groups.all = p.groups.count = groups;
  p.groups.m = m;
  return p;
}

TEST(GroupedChoose, EveryGpuRunsEveryShape) {
  for (const auto& [name, device] : kGpus)
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16})
      for (const int64_t m : {0, 1, 7, 100, 3000, 32768})
        for (const int64_t groups : {0, 1, 8, 128})
          for (const int64_t k : {1, 24, 2880}) {
            const GroupedParams p = ParamsOf(dtype, m, groups, k, k + 3);
            const GroupedCandidate* const choice = Choose(p, device);
            ASSERT_TRUE(choice) << name << " " << Name(dtype) << " m=" << m;
            EXPECT_TRUE(CanRun(*choice, p, device)) << name << " " << choice->name;
          }
}

TEST(GroupedChoose, FollowsTheRowsOfAGroup) {
  const auto rows = [](DType dtype, int64_t m, int64_t groups) {
    return Choose(ParamsOf(dtype, m, groups), Gpu("A100"))->rows;
  };
  EXPECT_EQ(rows(DType::kBF16, 8, 128), 8);
  EXPECT_EQ(rows(DType::kBF16, 128, 128), 8);
  EXPECT_EQ(rows(DType::kF16, 128 * 4, 128), 8);
  EXPECT_EQ(rows(DType::kF16, 128 * 8, 128), 64);
  EXPECT_EQ(rows(DType::kBF16, 128 * 64, 128), 64);
  EXPECT_EQ(rows(DType::kBF16, 128 * 256, 128), 128);
  EXPECT_EQ(rows(DType::kF32, 128 * 256, 128), 64);
  EXPECT_EQ(rows(DType::kF32, 8, 128), 64);
}

TEST(GroupedChoose, CountsTheRowsOfAllGroups) {
  GroupedParams p = ParamsOf(DType::kBF16, 128, 16);
  EXPECT_EQ(Choose(p, Gpu("A100"))->rows, 64);
  p.groups.all = 128;  // of which 16 are here
  EXPECT_EQ(Choose(p, Gpu("A100"))->kernel, GroupedKernel::kStream);
}

TEST(GroupedChoose, NarrowTilesWhereWideOnesReachPastTheLastColumn) {
  const auto rows = [](int64_t m, int64_t n, bool transposed, std::string_view gpu = "H200") {
    GroupedParams p = ParamsOf(DType::kBF16, m, 32, 2880, n);
    p.transposed = transposed;
    p.gating.is_there = transposed, p.x_rows = m / 4;
    return Choose(p, Gpu(gpu))->rows;
  };
  EXPECT_EQ(rows(64, 5760, true), 32);
  EXPECT_EQ(rows(512, 5760, true), 32);
  EXPECT_EQ(rows(64, 6144, true), kStreamRows) << "whole tiles of 256 columns";
  EXPECT_EQ(rows(512, 5760, false), 160) << "w [k, n]";
  EXPECT_EQ(rows(64, 5760, true, "A100"), kStreamRows);
}

TEST(GroupedChoose, HopperGetsItsOwnKernel) {
  const cuda::Device h200 = Gpu("H200");
  const auto arch = [&](const GroupedParams& p, const cuda::Device& device) {
    return Choose(p, device)->arch;
  };
  for (const DType dtype : {DType::kBF16, DType::kF16})
    for (const int64_t rows : {4, 32, 256, 4096}) {
      const GroupedParams p = ParamsOf(dtype, 128 * rows, 128);
      EXPECT_EQ(arch(p, h200), cuda::kHopper) << rows;
      EXPECT_EQ(arch(p, cuda::HeldBack(h200, 80)), cuda::kPortable) << rows;
      for (const char* const other : {"A100", "L40S", "B200"})
        EXPECT_EQ(arch(p, Gpu(other)), cuda::kPortable) << other;
    }
  const int32_t row = 0;
  GroupedParams gathered = ParamsOf(DType::kBF16, 32768, 128, 4096);
  gathered.rows = {&row};
  EXPECT_EQ(arch(gathered, h200), cuda::kHopper);
  gathered.x_rows = int64_t{1} << 24;  // 2^33 bytes a column of 8: more places than 32 bits count
  EXPECT_EQ(arch(gathered, h200), cuda::kPortable);
  EXPECT_EQ(arch(ParamsOf(DType::kF32, 32768, 128), h200), cuda::kPortable);
  EXPECT_EQ(arch(ParamsOf(DType::kBF16, 32768, 128, 2044), h200), cuda::kPortable);
  EXPECT_EQ(arch(ParamsOf(DType::kBF16, 32768, 128, 2048, 1540), h200), cuda::kPortable);
}

TEST(GroupedChoose, HopperStreamsARowOfAGroup) {
  const auto kernel = [](int64_t m, int64_t groups, int64_t k, int64_t n) {
    return Choose(ParamsOf(DType::kBF16, m, groups, k, n), Gpu("H200"))->kernel;
  };
  EXPECT_EQ(kernel(8, 128, 2048, 1536), GroupedKernel::kStream);
  EXPECT_EQ(kernel(2, 8, 4096, 28672), GroupedKernel::kStream);
  // gpt-oss: 360 CTAs, where the GPU has room for 264.
  EXPECT_EQ(kernel(4, 32, 2880, 5760), GroupedKernel::kWarpgroups);
  EXPECT_EQ(kernel(4, 32, 2880, 2880), GroupedKernel::kStream);
}

TEST(GroupedChoose, GatesResultsOfFewRows) {
  const auto choice = [](int64_t tokens, bool transposed) {
    GroupedParams p = ParamsOf(DType::kBF16, 8 * tokens, 128);
    p.x_rows = tokens;
    p.gating = Gating::Of("silu", 0.0f, 0.0f);
    p.transposed = transposed;
    return Choose(p, Gpu("H200"));
  };
  ASSERT_TRUE(choice(16, true));
  EXPECT_EQ(choice(16, true)->kernel, GroupedKernel::kStream);
  EXPECT_FALSE(choice(16, false));
  EXPECT_FALSE(choice(64, true));
  EXPECT_FALSE(choice(512, true));
}

TEST(GroupedChoose, RefusesWhatTheCopyEngineCannotRead) {
  const GroupedCandidate& hopper =
      *std::ranges::find(GroupedCandidates(), 160, &GroupedCandidate::rows);
  const cuda::Device h200 = Gpu("H200");
  GroupedParams p = ParamsOf(DType::kBF16, 1024, 8);
  EXPECT_TRUE(CanRun(hopper, p, h200));
  p.x = reinterpret_cast<const void*>(uintptr_t{8});
  EXPECT_FALSE(CanRun(hopper, p, h200));
  p = ParamsOf(DType::kBF16, 1024, 8, int64_t{1} << 20, int64_t{1} << 20);  // strides of 2^41 bytes
  EXPECT_FALSE(CanRun(hopper, p, h200));
  EXPECT_FALSE(CanRun(hopper, ParamsOf(DType::kBF16, 0, 8), h200));
}

TEST(GroupedChoose, NamesSayTheArchitectureAsAttentionsDo) {
  const auto expect = [](std::string_view name, int arch) {
    EXPECT_TRUE(name.starts_with(arch == cuda::kHopper ? "Hopper" : "portable")) << name;
  };
  for (const GroupedCandidate& candidate : GroupedCandidates())
    expect(candidate.name, candidate.arch);
  for (const GradientCandidate& candidate : GradientCandidates())
    expect(candidate.name, candidate.arch);
}

TEST(GroupedChoose, HopperGetsItsOwnGradient) {
  GroupedGradientParams p;
  p.dtype = p.out_dtype = DType::kBF16;
  p.k = 2048, p.n = 1536;
  p.groups.all = p.groups.count = 128;
  p.groups.m = 4096;
  EXPECT_EQ(Choose(p, Gpu("H200"))->arch, cuda::kHopper);
  EXPECT_EQ(Choose(p, Gpu("A100"))->arch, cuda::kPortable);
  EXPECT_EQ(Choose(p, cuda::HeldBack(Gpu("H200"), 80))->arch, cuda::kPortable);
  p.groups.m = 0;
  EXPECT_EQ(Choose(p, Gpu("H200"))->arch, cuda::kPortable);
  p.groups.m = 4096, p.dtype = p.out_dtype = DType::kF32;
  EXPECT_EQ(Choose(p, Gpu("H200"))->arch, cuda::kPortable);
}

TEST(GroupedChoose, StreamsAlignedRowsAlone) {
  const auto kernel = [](int64_t k, int64_t n) {
    return Choose(ParamsOf(DType::kBF16, 8, 8, k, n), Gpu("A100"))->kernel;
  };
  EXPECT_EQ(kernel(64, 64), GroupedKernel::kStream);
  EXPECT_EQ(kernel(60, 64), GroupedKernel::kTiles);
  EXPECT_EQ(kernel(64, 60), GroupedKernel::kTiles);
  GroupedParams p = ParamsOf(DType::kBF16, 8, 8);
  p.w = reinterpret_cast<const void*>(uintptr_t{8});
  EXPECT_EQ(Choose(p, Gpu("A100"))->kernel, GroupedKernel::kTiles);
}

TEST(GroupedChoose, MoreWarpsWhereCtasAreFew) {
  EXPECT_EQ(StreamWarps(ParamsOf(DType::kBF16, 8, 128), Gpu("H200")), 8);
  EXPECT_EQ(StreamWarps(ParamsOf(DType::kBF16, 128, 128), Gpu("H200")), 4);
}

TEST(GroupedChoose, NoGroupsNeedMoreTilesThanTheGridHas) {
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    const int64_t groups = random() % 20, rows = std::array{8, 16, 32, 64, 128}[random() % 5];
    int64_t m = random() % 400, left = m, tiles = 0;
    const int64_t all = m;
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t size =
          std::min<int64_t>(left, random() % 3 ? random() % 4 : random() % (all + 1));
      tiles += CeilDiv(size, rows);
      left -= size;
    }
    tiles += CeilDiv(left, rows);  // of no group
    ASSERT_LE(tiles, MostTiles(m, groups, static_cast<int>(rows))) << m << " " << groups;
  }
}

TEST(GroupedChoose, ReportsWhatAGpuGets) {
  const auto choices = ReportGroupedChoices(Gpu("L40S"));
  ASSERT_FALSE(choices.empty());
  EXPECT_EQ(choices.front().call, "grouped product bf16, rows of a group: 1");
  EXPECT_EQ(choices.front().kernel, "portable, 8 rows streamed past");
}

}  // namespace
}  // namespace intarsia::matmul
