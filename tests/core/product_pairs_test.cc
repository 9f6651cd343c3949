// Products of bf16 on the CPU, above all by pairs (src/matmul/cpu/pairs.h): against sums that are
// exact, at every tail, and with numbers that pairs treat in their own way.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "src/core/cpu/isa.h"
#include "src/core/cpu/thread_pool.h"
#include "src/matmul/cpu/product.h"

namespace intarsia::matmul {
namespace {

bool HasPairs() {
#if defined(__x86_64__)
  return BestIsa() == Isa::kAvx512 && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

// Whole bf16 alone: a number whose lower bits are 0.
uint16_t ToBits(float x) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16); }
float ToFloat(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

// An array with NaN before and behind it: no number there may count.
class Guarded {
 public:
  explicit Guarded(int64_t size) : data_(static_cast<size_t>(size) + 2 * kGuard, 0x7fc0) {}
  uint16_t& operator[](int64_t i) { return data_[static_cast<size_t>(i) + kGuard]; }
  float At(int64_t i) const { return ToFloat(data_[static_cast<size_t>(i) + kGuard]); }
  const uint16_t* data() const { return data_.data() + kGuard; }
  int64_t size() const { return static_cast<int64_t>(data_.size() - 2 * kGuard); }

 private:
  static constexpr size_t kGuard = 129;  // odd: rows of w lie anywhere
  std::vector<uint16_t> data_;
};

enum class Form { kRows, kColumns, kGradient };  // w [n, k]; [k, n]; that, and x [k, rows]
constexpr Form kForms[] = {Form::kRows, Form::kColumns, Form::kGradient};

// Products of groups of `rows` rows each, of k numbers and n results.
struct Products {
  Form form;
  std::vector<int64_t> rows;
  int64_t k, n;
  Guarded x, w, bias;

  Products(Form form, std::vector<int64_t> sizes, int64_t k, int64_t n)
      : form(form),
        rows(std::move(sizes)),
        k(k),
        n(n),
        x(Sum() * k),
        w(static_cast<int64_t>(rows.size()) * k * n),
        bias(static_cast<int64_t>(rows.size()) * n) {}

  int64_t Sum(size_t groups = ~size_t{}) const {
    int64_t sum = 0;
    for (size_t i = 0; i < std::min(groups, rows.size()); ++i) sum += rows[i];
    return sum;
  }
  template <class Fn>
  void Fill(Fn number) {
    for (Guarded* array : {&x, &w, &bias})
      for (int64_t i = 0; i < array->size(); ++i) (*array)[i] = ToBits(number());
  }
  // Where x's number q of row i of a group is, and w's.
  int64_t XAt(size_t group, int64_t i, int64_t q) const {
    return Sum(group) * k + (form == Form::kGradient ? q * rows[group] + i : i * k + q);
  }
  int64_t WAt(size_t group, int64_t q, int64_t j) const {
    return static_cast<int64_t>(group) * k * n + (form == Form::kRows ? j * k + q : q * n + j);
  }

  // The results in f32, [Sum(), n]. Groups of one number of rows where x lies column by column.
  std::vector<float> Run(const Executor* executor, IndexVector taken = {}) const {
    std::vector<float> out(static_cast<size_t>(Sum() * n) + 16, -77.0f);
    std::vector<Group> groups;
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      groups.push_back({.x = taken.data ? 0 : Sum(i) * k,
                        .w = at * k * n,
                        .bias = at * n,
                        .out = Sum(i) * n,
                        .first = Sum(i),
                        .rows = rows[i],
                        .count = k});
    }
    const bool gradient = form == Form::kGradient;
    const Product product{.dtype = DType::kBF16,
                          .out_dtype = DType::kF32,
                          .order = form == Form::kRows ? Order::kRows : Order::kColumns,
                          .x = x.data(),
                          .x_row = gradient ? 1 : k,
                          .x_column = gradient ? rows[0] : 1,
                          .rows = taken,
                          .x_rows = Sum(),
                          .w = w.data(),
                          .w_row = form == Form::kRows ? k : n,
                          .bias = bias.data(),
                          .out = out.data(),
                          .n = n};
    EXPECT_TRUE(matmul::Run(product, groups, CpuContext(executor)).ok());
    for (size_t i = out.size() - 16; i < out.size(); ++i) EXPECT_EQ(out[i], -77.0f);
    out.resize(out.size() - 16);
    return out;
  }
};

class ProductPairs : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasPairs()) GTEST_SKIP() << "no AVX512_BF16 here, or INTARSIA_ISA holds it back";
  }
};

// Small integers, whose sums are exact in any order. Of every machine: that of products by f32,
// too.
TEST(ProductOfBf16, IsExactAtEveryTail) {
  std::mt19937 random(1);
  const ThreadPool pool(3);
  for (const Form form : kForms)
    for (const int64_t k : {1, 7, 8, 9, 15, 17, 31, 32, 33, 63, 65, 1023, 1025})
      for (const std::vector<int64_t>& rows :
           {std::vector<int64_t>{1, 0, 2, 3, 0, 7}, {12, 17}, {33, 130}})
        for (const int64_t n : {1, 15, 17, 32, 33, 100, 257}) {
          if (k > 100 && n != 33) continue;  // sums at hand take their time
          std::vector<int64_t> sizes = rows;
          if (form == Form::kGradient) sizes.assign(2, rows.back());
          Products p(form, sizes, k, n);
          p.Fill([&] { return static_cast<float>(random() % 15) - 7.0f; });
          const std::vector<float> got = p.Run(k % 2 ? &pool : nullptr);
          for (size_t group = 0, at = 0; group < sizes.size(); ++group)
            for (int64_t i = 0; i < sizes[group]; ++i)
              for (int64_t j = 0; j < n; ++j, ++at) {
                float want = p.bias.At(static_cast<int64_t>(group) * n + j);
                for (int64_t q = 0; q < k; ++q)
                  want += p.x.At(p.XAt(group, i, q)) * p.w.At(p.WAt(group, q, j));
                ASSERT_EQ(got[at], want)
                    << "form " << static_cast<int>(form) << " k " << k << " n " << n << " group "
                    << group << " row " << i << " column " << j;
              }
        }
}

// A row or a column with NaN or an infinity in it reaches no other.
TEST(ProductOfBf16, NanAndInfinityStayWhereTheyAre) {
  constexpr int64_t kRows = 19, kN = 41;
  for (const Form form : kForms)
    for (const int64_t k : {8, 31, 33, 65})
      for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
        Products p(form, {kRows}, k, kN);
        p.Fill([] { return 1.0f; });
        const int64_t row = 3, column = 20;
        for (const int64_t q : {int64_t{0}, k - 1}) {
          p.x[p.XAt(0, row, q)] = ToBits(bad);
          p.w[p.WAt(0, q, column)] = ToBits(bad);
          p.w[p.WAt(0, q, kN - 1)] = ToBits(bad);
        }
        const std::vector<float> got = p.Run(nullptr);
        for (int64_t i = 0; i < kRows; ++i)
          for (int64_t j = 0; j < kN; ++j) {
            const float y = got[static_cast<size_t>(i * kN + j)];
            if (i == row || j == column || j == kN - 1)
              EXPECT_TRUE(std::isnan(bad) ? std::isnan(y) : std::isinf(y)) << y;
            else
              EXPECT_EQ(y, static_cast<float>(k + 1)) << i << " " << j;
          }
      }
}

// Of infinity and zero, and of infinities of both signs, NaN.
TEST(ProductOfBf16, InfinityTimesZeroIsNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Form form : kForms) {
    Products p(form, {5}, 9, 33);
    p.Fill([] { return 0.0f; });
    p.x[p.XAt(0, 4, 8)] = ToBits(infinity);
    const std::vector<float> zero = p.Run(nullptr);
    p.Fill([] { return 1.0f; });
    p.x[p.XAt(0, 4, 2)] = ToBits(infinity);
    p.x[p.XAt(0, 4, 3)] = ToBits(-infinity);
    const std::vector<float> both = p.Run(nullptr);
    for (size_t i = 0; i < zero.size(); ++i) {
      EXPECT_EQ(std::isnan(zero[i]), i >= 4 * 33) << i;
      EXPECT_EQ(std::isnan(both[i]), i >= 4 * 33) << i;
    }
  }
}

TEST(ProductOfBf16, RowsThatAreNotThereGiveZeros) {
  const ThreadPool pool(3);
  const std::vector<int64_t> taken{2, -1, 0, 9, 4, 1 << 20, 3};
  for (const Form form : {Form::kRows, Form::kColumns}) {
    Products p(form, {3, 4}, 33, 70);
    p.Fill([] { return 1.0f; });
    const std::vector<float> got = p.Run(&pool, {taken.data(), true});
    for (size_t i = 0; i < got.size(); ++i) {
      const int64_t from = taken[i / 70];
      EXPECT_EQ(got[i], from < 0 || from >= 7 ? 0.0f : 34.0f) << i;
    }
  }
}

// The contract of pairs: denormals count as zeros, going in and coming out. Rows too few for pairs
// keep them.
TEST_F(ProductPairs, DenormalsAreZeros) {
  const float denormal = 0x1p-130f, small = 0x1p-70f;
  for (const Form form : kForms)
    for (const int64_t rows : {1, 3, 16, 40})
      for (const bool inputs : {true, false}) {
        Products p(form, {rows}, 9, 50);
        p.Fill([] { return 0.0f; });
        for (int64_t i = 0; i < rows; ++i) p.x[p.XAt(0, i, 8)] = ToBits(inputs ? denormal : small);
        for (int64_t j = 0; j < 50; ++j) p.w[p.WAt(0, 8, j)] = ToBits(inputs ? 0x1p100f : small);
        const float want = rows > 1 ? 0.0f : inputs ? 0x1p-30f : 0x1p-140f;
        for (const float y : p.Run(nullptr)) ASSERT_EQ(y, want) << rows << " " << inputs;
      }
}

// Where w lies column by column, sums take their pairs one after another, the second number first.
TEST_F(ProductPairs, EachProductIsRoundedIntoTheSum) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (const Form form : {Form::kColumns, Form::kGradient}) {
    Products p(form, {37}, 301, 45);
    p.Fill([&] { return ToFloat(ToBits(normal(random))); });
    const std::vector<float> got = p.Run(nullptr);
    for (int64_t i = 0; i < 37; ++i)
      for (int64_t j = 0; j < 45; ++j) {
        float want = 0;
        const auto add = [&](int64_t q) {
          if (q < 301) want = std::fma(p.x.At(p.XAt(0, i, q)), p.w.At(p.WAt(0, q, j)), want);
        };
        for (int64_t q = 0; q < 301; q += 2) add(q + 1), add(q);
        want += p.bias.At(j);
        ASSERT_EQ(got[static_cast<size_t>(i * 45 + j)], want) << i << " " << j;
      }
  }
}

// tests/support.py's bound for f32; and the same bits again.
TEST_F(ProductPairs, IsCloseToF64AndRepeatsItsBits) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const ThreadPool pool(3);
  for (const Form form : kForms)
    for (const int64_t rows : {2, 5, 150}) {
      Products p(form, {rows}, 1537, 67);
      p.Fill([&] { return ToFloat(ToBits(normal(random))); });
      const std::vector<float> got = p.Run(&pool), again = p.Run(&pool);
      EXPECT_EQ(std::memcmp(got.data(), again.data(), got.size() * sizeof(float)), 0);
      double error = 0, size = 0;
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < 67; ++j) {
          double want = p.bias.At(j);
          for (int64_t q = 0; q < 1537; ++q)
            want += double{p.x.At(p.XAt(0, i, q))} * p.w.At(p.WAt(0, q, j));
          const double difference = got[static_cast<size_t>(i * 67 + j)] - want;
          error += difference * difference, size += want * want;
        }
      EXPECT_LT(std::sqrt(error / size), 2e-6) << static_cast<int>(form) << " " << rows;
    }
}

}  // namespace
}  // namespace intarsia::matmul
