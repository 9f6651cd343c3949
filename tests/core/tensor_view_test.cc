#include "src/core/tensor_view.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

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
