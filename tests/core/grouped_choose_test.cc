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
    return Choose(ParamsOf(dtype, m, groups), Gpu("H200"))->rows;
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
  EXPECT_EQ(Choose(p, Gpu("H200"))->rows, 64);
  p.groups.all = 128;  // of which 16 are here
  EXPECT_EQ(Choose(p, Gpu("H200"))->kernel, GroupedKernel::kStream);
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
