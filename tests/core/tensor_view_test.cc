#include "src/core/tensor_view.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "src/core/checked.h"

namespace intarsia {
namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

Status Make(DType dtype, std::vector<int64_t> dims, TensorView& view) {
  return MakeDense(nullptr, dtype, dims, view);
}

TEST(MakeDense, RowMajorStrides) {
  TensorView view;
  ASSERT_TRUE(Make(DType::kF16, {2, 3, 5}, view).ok());
  EXPECT_EQ(view.rank, 3);
  EXPECT_EQ(view.size(), 30);
  EXPECT_EQ(view.stride(0), 15);
  EXPECT_EQ(view.stride(1), 5);
  EXPECT_EQ(view.stride(-1), 1);
  EXPECT_EQ(view.dim(-2), 3);
  EXPECT_TRUE(view.dense());
  EXPECT_EQ(ShapeText(view.shape()), "[2, 3, 5]");
}

TEST(MakeDense, Scalar) {
  TensorView view;
  ASSERT_TRUE(Make(DType::kI32, {}, view).ok());
  EXPECT_EQ(view.size(), 1);
  EXPECT_TRUE(view.dense());
  EXPECT_EQ(ShapeText(view.shape()), "[]");
}

TEST(MakeDense, Empty) {
  TensorView view;
  ASSERT_TRUE(Make(DType::kF32, {4, 0, 3}, view).ok());
  EXPECT_EQ(view.size(), 0);
  EXPECT_TRUE(view.dense());
}

TEST(MakeDense, RefusesRanksAboveEight) {
  TensorView view;
  EXPECT_TRUE(Make(DType::kF32, std::vector<int64_t>(8, 1), view).ok());
  const Status status = Make(DType::kF32, std::vector<int64_t>(9, 1), view);
  EXPECT_EQ(status.code, Code::kInvalidArgument);
  EXPECT_EQ(status.message, "has rank 9, at most 8 is supported");
}

TEST(MakeDense, RefusesNegativeSizes) {
  TensorView view;
  EXPECT_EQ(Make(DType::kF32, {3, -1}, view).message, "has a negative size: [3, -1]");
}

TEST(MakeDense, RefusesSizesThatOverflow) {
  TensorView view;
  const int64_t root = int64_t{1} << 32;
  const std::vector<std::vector<int64_t>> too_large = {
      {kHuge},       {root, root},      {1 << 20, 1 << 20, 1 << 20, 1 << 20},
      {kHuge, 0, 2}, {0, kHuge, kHuge}, {root, root, 0}};
  for (const auto& dims : too_large) {
    const Status status = Make(DType::kF16, dims, view);
    EXPECT_EQ(status.code, Code::kInvalidArgument) << ShapeText(dims);
    EXPECT_NE(status.message.find("2^63"), std::string::npos) << status.message;
  }
  // The largest that fits, in bytes: 2^62 * 1, and 2^61 halves.
  EXPECT_TRUE(Make(DType::kU8, {int64_t{1} << 62}, view).ok());
  EXPECT_TRUE(Make(DType::kF16, {int64_t{1} << 61}, view).ok());
  EXPECT_FALSE(Make(DType::kF16, {int64_t{1} << 62}, view).ok());
}

TEST(TensorView, DenseLooksAtStridesThatMatter) {
  TensorView view;
  ASSERT_TRUE(Make(DType::kF32, {2, 1, 3}, view).ok());
  view.strides = {3, 99, 1};  // an axis of size 1 may have any stride
  EXPECT_TRUE(view.dense());
  view.strides = {4, 3, 1};
  EXPECT_FALSE(view.dense());
  view.strides = {1, 1, 2};
  EXPECT_FALSE(view.dense());
  view.dims[0] = 0;  // nothing in it
  EXPECT_TRUE(view.dense());
}

TEST(MakeStrided, KeepsStridesThatMatter) {
  const auto strides_of = [](std::vector<int64_t> dims, std::vector<int64_t> strides) {
    TensorView view;
    EXPECT_TRUE(MakeStrided(nullptr, DType::kF16, dims, strides.data(), view).ok());
    return std::vector(view.strides.begin(), view.strides.begin() + view.rank);
  };
  using Strides = std::vector<int64_t>;
  EXPECT_EQ(strides_of({2, 3, 4}, {-100, 0, 7}), (Strides{-100, 0, 7}));
  // Axes of one element, and those of an empty array, may have any.
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(strides_of({1, 3, 1, 4}, {kHuge, 40, kLeast, 1}), (Strides{12, 40, 4, 1}));
  EXPECT_EQ(strides_of({5, 0, 4}, {kHuge, kHuge, kLeast}), (Strides{4, 4, 1}));
  EXPECT_EQ(strides_of({}, {}), Strides{});
}

TEST(MakeStrided, RefusesAReachThatOverflows) {
  TensorView view;
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  for (const std::vector<int64_t>& strides :
       {std::vector<int64_t>{kHuge, 1}, {1, kLeast}, {kHuge / 4, 1}, {kHuge / 6, -kHuge / 6}}) {
    const std::vector<int64_t> dims{2, 2};
    const Status status = MakeStrided(nullptr, DType::kF16, dims, strides.data(), view);
    EXPECT_EQ(status.code, Code::kInvalidArgument) << ShapeText(strides);
    EXPECT_NE(status.message.find("reach below 2^63 bytes"), std::string::npos) << status.message;
  }
  const int64_t widest[] = {kHuge / 8, 1};
  EXPECT_TRUE(MakeStrided(nullptr, DType::kF16, std::vector<int64_t>{2, 2}, widest, view).ok());
}

TEST(Bounded, ProductsAndSums) {
  static_assert(BoundedProduct({}) == 1 && BoundedProduct({3, 5}) == 15);
  static_assert(BoundedProduct({kMostSize, 1}) == kMostSize);
  static_assert(BoundedProduct({kHuge, kHuge, 2}) == kMostSize);
  static_assert(BoundedProduct({kHuge, kHuge, 0}) == 0);
  static_assert(BoundedProduct({int64_t{1} << 31, int64_t{1} << 30}) == int64_t{1} << 61);
  static_assert(BoundedProduct({int64_t{1} << 31, int64_t{1} << 31}) == kMostSize);
  static_assert(BoundedSum({1, 2, 3}) == 6 && BoundedSum({kHuge, 1}) == kMostSize);
  static_assert(BoundedSum({kMostSize, kMostSize}) == kMostSize);
}

TEST(DType, NamesAndSizes) {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(DTypeFromName(Name(dtype)), dtype);
  }
  EXPECT_EQ(Bytes(DType::kBF16), 2);
  EXPECT_EQ(Bytes(DType::kI64), 8);
  EXPECT_FALSE(DTypeFromName("f33").has_value());
}

}  // namespace
}  // namespace intarsia
