// Which passes of fused_experts need no sort.
#include <gtest/gtest.h>

#include "src/ops/fused_experts/pass.h"

namespace intarsia {
namespace {

ExpertsPass PassOf(int64_t tokens, int64_t k, int64_t experts) {
  ExpertsPass pass;
  pass.dtype = pass.weights_dtype = DType::kBF16;
  pass.tokens = tokens, pass.k = k, pass.experts = experts;
  pass.n = 2048, pass.i = 768;
  return pass;
}

TEST(FusedExperts, OneTokenSharesNoExpert) {
  for (const auto& [k, experts] : {std::pair{8, 128}, {4, 32}, {2, 8}, {1, 1}, {3, 2}})
    EXPECT_TRUE(IsOfFewTokens(PassOf(1, k, experts))) << k << " of " << experts;
}

TEST(FusedExperts, FewTokensShareFewExperts) {
  EXPECT_TRUE(IsOfFewTokens(PassOf(3, 8, 128)));
  EXPECT_FALSE(IsOfFewTokens(PassOf(4, 8, 128)));
  EXPECT_TRUE(IsOfFewTokens(PassOf(2, 4, 32)));
  EXPECT_FALSE(IsOfFewTokens(PassOf(2, 2, 8)));
  EXPECT_TRUE(IsOfFewTokens(PassOf(9, 8, 128), 4));
  EXPECT_FALSE(IsOfFewTokens(PassOf(10, 8, 128), 4));
  EXPECT_TRUE(IsOfFewTokens(PassOf(5, 4, 32), 4));
  EXPECT_FALSE(IsOfFewTokens(PassOf(6, 4, 32), 4));
}

TEST(FusedExperts, OtherPassesAreSorted) {
  const auto without = [](auto change) {
    ExpertsPass pass = PassOf(1, 8, 128);
    change(pass);
    return IsOfFewTokens(pass);
  };
  EXPECT_TRUE(without([](ExpertsPass&) {}));
  EXPECT_FALSE(without([](ExpertsPass& p) { p.dtype = DType::kF32; }));
  EXPECT_FALSE(without([](ExpertsPass& p) { p.weights_on_input = true; }));
  EXPECT_FALSE(without([](ExpertsPass& p) { p.k = 0; }));
  EXPECT_FALSE(without([](ExpertsPass& p) { p.experts = 0; }));
  EXPECT_FALSE(without([](ExpertsPass& p) { p.n = 2044; }));
  EXPECT_FALSE(without([](ExpertsPass& p) { p.i = 764; }));
  EXPECT_FALSE(without([](ExpertsPass& p) { p.i = int64_t{1} << 20; }));
  EXPECT_FALSE(without([](ExpertsPass& p) { p.w2 = reinterpret_cast<const void*>(8); }));
}

TEST(FusedExperts, DescribedArraysMayBeOfAnySize) {
  FusedExperts op;
  const auto view = [](std::vector<int64_t> dims) {
    TensorView x;
    EXPECT_TRUE(MakeDense(nullptr, DType::kF32, dims, x).ok());
    return x;
  };
  constexpr int64_t kMany = int64_t{1} << 50;
  op.x = view({kMany, 64});
  op.ids = op.weights = view({kMany, 512});
  op.w1 = view({8, 128, 64});
  op.w2 = view({8, 64, 64});
  const int64_t bytes = 4 * op.WorkspaceDims()[1];
  EXPECT_GT(bytes, int64_t{1} << 29);
  EXPECT_LE(bytes, int64_t{1} << 30);
}

}  // namespace
}  // namespace intarsia
