#include "src/core/overlap.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace intarsia {
namespace {

std::byte memory[1];  // an address; nothing is read

TensorView View(int64_t at, DType dtype, std::vector<int64_t> dims, std::vector<int64_t> strides) {
  TensorView view;
  EXPECT_TRUE(MakeStrided(memory + at, dtype, dims, strides.data(), view).ok());
  return view;
}

// In f32, beginning at an element.
TensorView At(int64_t element, std::vector<int64_t> dims, std::vector<int64_t> strides) {
  return View(4 * element, DType::kF32, std::move(dims), std::move(strides));
}

bool Both(const TensorView& a, const TensorView& b) {
  EXPECT_EQ(Overlap(a, b), Overlap(b, a));
  return Overlap(a, b);
}

// The addresses of all bytes.
std::set<int64_t> BytesOf(const TensorView& x) {
  std::set<int64_t> all;
  std::vector<int64_t> at = {reinterpret_cast<int64_t>(x.data)};
  for (int axis = 0; axis < x.rank; ++axis) {
    std::vector<int64_t> next;
    for (const int64_t from : at)
      for (int64_t i = 0; i < x.dim(axis); ++i)
        next.push_back(from + i * x.stride(axis) * Bytes(x.dtype));
    at = std::move(next);
  }
  for (const int64_t from : at)
    for (int64_t i = 0; i < Bytes(x.dtype); ++i) all.insert(from + i);
  return all;
}

TEST(Overlap, PartsOfRows) {
  const TensorView query = At(0, {4, 32}, {48, 1});
  EXPECT_TRUE(Both(query, At(16, {4, 32}, {48, 1})));
  EXPECT_TRUE(Both(query, At(31, {4, 16}, {48, 1})));
  EXPECT_FALSE(Both(query, At(32, {4, 16}, {48, 1})));
  EXPECT_FALSE(Both(query, At(4 * 48, {4, 32}, {48, 1}))) << "behind it";
  EXPECT_TRUE(Both(query, At(47, {4, 2}, {48, 1}))) << "around the end of a row";
  EXPECT_TRUE(Both(query, At(16, {4, 2, 16}, {48, 16, 1}))) << "in other axes";
  EXPECT_FALSE(Both(query, At(32, {4, 1, 16}, {48, 16, 1})));
  EXPECT_TRUE(Both(query, At(40, {64}, {1}))) << "dense";
  EXPECT_FALSE(Both(query, At(32, {16}, {1})));
}

TEST(Overlap, PartsOfACache) {
  const std::vector<int64_t> pages = {5, 4, 2, 8}, strides = {128, 16, 8, 1};
  const TensorView keys = At(0, pages, strides);
  EXPECT_FALSE(Both(keys, At(64, pages, strides)));
  EXPECT_TRUE(Both(keys, At(32, pages, strides)));
  const std::vector<int64_t> apart = {5, 4, 2, 8}, wide = {128, 32, 16, 1};
  EXPECT_FALSE(Both(At(0, apart, wide), At(8, apart, wide)));
  EXPECT_TRUE(Both(At(0, apart, wide), At(7, apart, wide)));
}

TEST(Overlap, NothingOverlapsWithNothing) {
  EXPECT_FALSE(Both(At(0, {0, 4}, {4, 1}), At(0, {3, 4}, {4, 1})));
}

TEST(Overlap, BytesOfAnotherType) {
  const TensorView numbers = At(0, {3}, {2});
  EXPECT_FALSE(Both(numbers, View(4, DType::kU8, {3, 4}, {8, 1})));
  EXPECT_TRUE(Both(numbers, View(3, DType::kU8, {3, 4}, {8, 1})));
}

TEST(Overlap, AViewThatReachesBeyondMemoryIsAWrongOne) {
  const int64_t far = int64_t{1} << 58;
  EXPECT_FALSE(Both(At(0, {2, 2}, {far, 1}), At(1, {2, 2}, {far, -far})));
}

TEST(Overlap, IsWhatTheBytesSay) {
  std::mt19937 random(0);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int round = 0; round < 5000; ++round) {
    const auto drawn = [&] {
      const auto dtype = std::array{DType::kF32, DType::kF16, DType::kU8}[draw(0, 2)];
      std::vector<int64_t> dims, strides;
      for (int64_t axis = draw(0, 3); axis > 0; --axis) {
        dims.push_back(draw(1, 4));
        strides.push_back(draw(-2, 12));
      }
      return View(draw(0, 60), dtype, dims, strides);
    };
    const TensorView a = drawn(), b = drawn();
    const std::set<int64_t> of_a = BytesOf(a), of_b = BytesOf(b);
    const bool want = std::ranges::any_of(of_a, [&](int64_t x) { return of_b.contains(x); });
    EXPECT_EQ(Both(a, b), want) << ShapeText(a.shape()) << ShapeText(b.shape());
  }
}

}  // namespace
}  // namespace intarsia
