// Grouped products on the CPU: sizes that do not fit reach nothing else, whatever the threads.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "src/core/cpu/thread_pool.h"
#include "src/matmul/grouped.h"

namespace intarsia::matmul {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();

struct Sizes {
  std::vector<int64_t> sizes;
  int64_t groups, offset;
};
const Sizes kCases[] = {{{3, 0, 5}, 3, 0},           {{kMost, kMost, kMost}, 3, 0},
                        {{kLeast, 4, -1, 99}, 4, 0}, {{2, 3, 4, 5}, 2, 1},
                        {{2, 3, 4, 5}, 2, kMost},    {{2, 3, 4, 5}, 2, kLeast},
                        {{2, 3, 4, 5}, 3, 2},        {{}, 0, 0}};

// Numbers with as many behind them that nobody may write.
std::vector<float> Guarded(size_t size) { return std::vector<float>(size + 64, std::nanf("")); }
void ExpectGuard(const std::vector<float>& array, size_t size) {
  for (size_t i = size; i < array.size(); ++i) EXPECT_TRUE(std::isnan(array[i])) << i;
}

TEST(GroupedCpu, SizesThatDoNotFitReachNothingElse) {
  constexpr int64_t kM = 11, kK = 19, kN = 37;
  std::mt19937 random(1);
  const auto numbers = [&](int64_t count) {
    std::vector<float> x(static_cast<size_t>(count));
    for (float& value : x) value = static_cast<float>(random() % 17) - 8.0f;  // sums are exact
    return x;
  };
  const auto at = [](const std::vector<float>& x, int64_t i) { return x[static_cast<size_t>(i)]; };
  const ThreadPool pool(3);
  const std::vector<float> x = numbers(kM * kK), d_out = numbers(kM * kN);
  for (const Sizes& c : kCases) {
    const auto all = static_cast<int64_t>(c.sizes.size());
    const std::vector<float> w = numbers(c.groups * kK * kN);
    // The group at hand of each row.
    std::vector<int64_t> group_of(kM, -1);
    for (int64_t group = 0, row = 0; group < all; ++group)
      for (int64_t i = 0; i < c.sizes[static_cast<size_t>(group)] && row < kM; ++i, ++row)
        if (group >= c.offset && group - c.offset < c.groups)
          group_of[static_cast<size_t>(row)] = group - c.offset;
    const GroupSizes groups{.sizes = {c.sizes.data(), true},
                            .all = all,
                            .count = c.groups,
                            .m = kM,
                            .offset = {&c.offset, true}};
    for (const bool transposed : {false, true})
      for (const Executor* executor :
           {static_cast<const Executor*>(nullptr), static_cast<const Executor*>(&pool)}) {
        std::vector<float> out = Guarded(kM * kN);
        GroupedParams p;
        p.x = x.data(), p.w = w.data(), p.out = out.data();
        p.k = kK, p.n = kN, p.x_rows = kM;
        p.transposed = transposed;
        p.groups = groups;
        ASSERT_TRUE(matmul::Run(p, CpuContext(executor)).ok());
        ExpectGuard(out, kM * kN);
        for (int64_t i = 0; i < kM * kN; ++i) {
          const int64_t group = group_of[static_cast<size_t>(i / kN)], j = i % kN;
          float want = 0.0f;
          for (int64_t q = 0; group >= 0 && q < kK; ++q)
            want += at(x, i / kN * kK + q) *
                    at(w, transposed ? (group * kN + j) * kK + q : (group * kK + q) * kN + j);
          ASSERT_EQ(at(out, i), want) << i;
        }
      }
    const int64_t size = c.groups * kK * kN;
    std::vector<float> gradient = Guarded(static_cast<size_t>(size));
    GroupedGradientParams p;
    p.x = x.data(), p.d_out = d_out.data(), p.out = gradient.data();
    p.k = kK, p.n = kN;
    p.groups = groups;
    ASSERT_TRUE(matmul::Run(p, CpuContext(&pool)).ok());
    ExpectGuard(gradient, static_cast<size_t>(size));
    for (int64_t i = 0; i < size; ++i) {
      float want = 0.0f;
      for (int64_t row = 0; row < kM; ++row)
        if (group_of[static_cast<size_t>(row)] == i / (kK * kN))
          want += at(x, row * kK + i / kN % kK) * at(d_out, row * kN + i % kN);
      ASSERT_EQ(at(gradient, i), want) << i;
    }
  }
}

// Arrays without elements may have any number of groups, and take no memory for them.
TEST(GroupedCpu, GroupsWithoutElements) {
  constexpr int64_t kM = 3, kN = 5;
  const std::vector<int64_t> sizes{1, 1};
  ThreadPool pool(2);
  std::vector<float> out = Guarded(kM * kN);
  GroupedParams p;
  p.out = out.data();
  p.n = kN, p.x_rows = kM;
  p.groups = {.sizes = {sizes.data(), true}, .all = 2, .count = int64_t{1} << 40, .m = kM};
  ASSERT_TRUE(matmul::Run(p, CpuContext(&pool)).ok());
  ExpectGuard(out, kM * kN);
  for (int64_t i = 0; i < kM * kN; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], 0.0f);
  GroupedGradientParams gradient;
  gradient.n = kN;
  gradient.groups = p.groups;
  EXPECT_TRUE(matmul::Run(gradient, CpuContext(&pool)).ok());
}

}  // namespace
}  // namespace intarsia::matmul
