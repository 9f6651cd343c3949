// simd.h against scalar arithmetic, for each instruction set that this machine has.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "src/core/native_f16.h"
#include "tests/core/full.h"
#include "tests/core/simd_fixture.h"

namespace intarsia {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

float FromBits(uint32_t bits) { return std::bit_cast<float>(bits); }

float ScalarFromF16(uint16_t bits) { return static_cast<float>(std::bit_cast<NativeF16>(bits)); }
float ScalarFromBF16(uint16_t bits) { return FromBits(static_cast<uint32_t>(bits) << 16); }
uint16_t ScalarToF16(float x) { return std::bit_cast<uint16_t>(static_cast<NativeF16>(x)); }
uint16_t ScalarToBF16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t low = bits & 0xffff, high = bits >> 16;
  return static_cast<uint16_t>(high + (low > 0x8000 || (low == 0x8000 && high % 2 == 1)));
}
bool IsNaNF16(uint16_t bits) { return (bits & 0x7c00) == 0x7c00 && (bits & 0x3ff) != 0; }
bool IsNaNBF16(uint16_t bits) { return (bits & 0x7f80) == 0x7f80 && (bits & 0x7f) != 0; }

struct Half {
  const char* name;
  float (*from)(uint16_t);
  uint16_t (*to)(float);
  bool (*is_nan)(uint16_t);
  decltype(SimdFunctions::load_f16) SimdFunctions::* load;
  decltype(SimdFunctions::store_f16) SimdFunctions::* store;
  decltype(SimdFunctions::round_to_f16) SimdFunctions::* round;
};
constexpr Half kHalves[] = {
    {"f16", ScalarFromF16, ScalarToF16, IsNaNF16, &SimdFunctions::load_f16,
     &SimdFunctions::store_f16, &SimdFunctions::round_to_f16},
    {"bf16", ScalarFromBF16, ScalarToBF16, IsNaNBF16, &SimdFunctions::load_bf16,
     &SimdFunctions::store_bf16, &SimdFunctions::round_to_bf16},
};

INSTANTIATE_TEST_SUITE_P(Isa, Simd, testing::ValuesIn(kIsas), IsaName);

// Every step-th f32 of [first, last], by their bits.
std::vector<float> Sweep(float first, float last, uint32_t step) {
  std::vector<float> values;
  for (uint64_t bits = std::bit_cast<uint32_t>(first); bits <= std::bit_cast<uint32_t>(last);
       bits += step)
    values.push_back(FromBits(static_cast<uint32_t>(bits)));
  return values;
}

// The largest |y - want| / |want| of fn over x.
template <class Want>
double WorstError(void (*fn)(const float*, int64_t, float*), const std::vector<float>& x,
                  Want want) {
  std::vector<float> y(x.size());
  fn(x.data(), static_cast<int64_t>(x.size()), y.data());
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = want(static_cast<double>(x[i]));
    const double error = exact == y[i] ? 0 : std::abs((y[i] - exact) / exact);
    if (!(error <= worst)) worst = std::isnan(error) ? HUGE_VAL : error;
  }
  return worst;
}

// Prime, so that every pattern of the low bits occurs. Step 1 passes too: its worst error of Exp
// is 7.9e-8.
const uint32_t kPrimeStep = Full() ? 61 : 1009;

TEST_P(Simd, ExpIsAccurate) {
  const auto exp = [](double x) { return std::exp(x); };
  EXPECT_LT(WorstError(simd.exp, Sweep(0.0f, 88.72f, kPrimeStep), exp), 2e-7);
  EXPECT_LT(WorstError(simd.exp, Sweep(-0.0f, -87.29f, kPrimeStep), exp), 2e-7);
}

TEST_P(Simd, ExpAtTheEnds) {
  const std::vector<float> x = {kInf,   3e38f, 89.5f, 88.73f, -87.31f, -100.0f,
                                -3e38f, -kInf, kNaN,  -kNaN,  0.0f,    -0.0f};
  std::vector<float> y(x.size());
  simd.exp(x.data(), static_cast<int64_t>(x.size()), y.data());
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(y[i], kInf) << x[i];
  for (size_t i = 4; i < 8; ++i) EXPECT_EQ(y[i], 0.0f) << x[i];
  for (size_t i = 8; i < 10; ++i) EXPECT_TRUE(std::isnan(y[i]));
  for (size_t i = 10; i < 12; ++i) EXPECT_EQ(y[i], 1.0f);
}

TEST_P(Simd, TanhIsAccurate) {
  const auto tanh = [](double x) { return std::tanh(x); };
  EXPECT_LT(WorstError(simd.tanh, Sweep(FromBits(0x00800000), kInf, kPrimeStep), tanh), 1e-6);
  EXPECT_LT(WorstError(simd.tanh, Sweep(-FromBits(0x00800000), -kInf, kPrimeStep), tanh), 1e-6);
  float nan = kNaN, zero = 0;
  simd.tanh(&nan, 1, &nan);
  simd.tanh(&zero, 1, &zero);
  EXPECT_TRUE(std::isnan(nan));
  EXPECT_EQ(zero, 0.0f);
}

TEST_P(Simd, NormalCdfIsAccurate) {
  // Relatively, also in the tail.
  const auto cdf = [](double x) { return 0.5 * std::erfc(-x * M_SQRT1_2); };
  EXPECT_LT(WorstError(simd.normal_cdf, Sweep(0.0f, 40.0f, kPrimeStep), cdf), 5e-7);
  EXPECT_LT(WorstError(simd.normal_cdf, Sweep(-0.0f, -12.9f, kPrimeStep), cdf), 5e-7);
}

TEST_P(Simd, NormalCdfAtTheEnds) {
  const std::vector<float> x = {kInf, 3e38f, 1e20f, 40.0f, -13.3f, -1e20f, -3e38f, -kInf, kNaN};
  std::vector<float> y(x.size());
  simd.normal_cdf(x.data(), static_cast<int64_t>(x.size()), y.data());
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(y[i], 1.0f) << x[i];
  for (size_t i = 4; i < 8; ++i) EXPECT_EQ(y[i], 0.0f) << x[i];
  EXPECT_TRUE(std::isnan(y[8]));
}

TEST_P(Simd, LoadsEveryHalf) {
  std::vector<uint16_t> bits(65536);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  std::vector<float> got(bits.size());
  for (const Half& half : kHalves) {
    (simd.*half.load)(bits.data(), 65536, got.data());
    for (size_t i = 0; i < bits.size(); ++i) {
      if (half.is_nan(bits[i]))
        ASSERT_TRUE(std::isnan(got[i])) << half.name << " " << i;
      else
        ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(half.from(bits[i])))
            << half.name << " " << i;
    }
  }
}

// Stores x, and says which elements differ from the scalar conversion.
void ExpectStores(const SimdFunctions& simd, const Half& half, const std::vector<float>& x) {
  std::vector<uint16_t> stored(x.size());
  std::vector<float> rounded(x.size());
  (simd.*half.store)(x.data(), static_cast<int64_t>(x.size()), stored.data());
  (simd.*half.round)(x.data(), static_cast<int64_t>(x.size()), rounded.data());
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) {
      ASSERT_TRUE(half.is_nan(stored[i])) << half.name << " NaN " << std::bit_cast<uint32_t>(x[i]);
      ASSERT_TRUE(std::isnan(rounded[i]));
      continue;
    }
    ASSERT_EQ(stored[i], half.to(x[i])) << half.name << " " << x[i];
    ASSERT_EQ(std::bit_cast<uint32_t>(rounded[i]), std::bit_cast<uint32_t>(half.from(stored[i])));
  }
}

TEST_P(Simd, StoresToNearestEven) {
  // Every half, every tie between neighbors, and what lies next to a tie: denormals, infinities,
  // NaN.
  for (const Half& half : kHalves) {
    std::vector<float> x;
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const auto low = static_cast<uint16_t>(bits), high = static_cast<uint16_t>(bits + 1);
      x.push_back(half.from(low));
      if (half.is_nan(low) || half.is_nan(high) || std::isinf(half.from(low))) continue;
      const float next = std::isinf(half.from(high))
                             ? std::ldexp(half.from(static_cast<uint16_t>(low & 0xfc00)), 1)
                             : half.from(high);
      const double tie = (static_cast<double>(half.from(low)) + static_cast<double>(next)) / 2;
      for (const auto side : {-kInf, kInf})
        x.push_back(std::nextafter(static_cast<float>(tie), side));
      x.push_back(static_cast<float>(tie));
    }
    ExpectStores(simd, half, x);
  }
}

TEST_P(Simd, StoresASweepOfAllF32) {
  constexpr uint64_t kChunk = 1 << 16;
  const uint64_t step = Full() ? 1009 : 10007;
  for (const Half& half : kHalves) {
    std::vector<float> x;
    for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += step) {
      x.push_back(FromBits(static_cast<uint32_t>(bits)));
      if (x.size() < kChunk) continue;
      ExpectStores(simd, half, x);
      x.clear();
    }
    ExpectStores(simd, half, x);
  }
}

TEST_P(Simd, PartsLeaveTheRestAlone) {
  constexpr uint16_t kGuard = 0x1234;
  for (int64_t n = 0; n <= 3 * simd.lanes; ++n) {
    std::vector<float> x(static_cast<size_t>(n),
                         1.5f);  // the size says where reading must end (ASan)
    std::vector<uint16_t> y(static_cast<size_t>(n) + 32, kGuard);
    simd.store_bf16(x.data(), n, y.data());
    for (size_t i = 0; i < y.size(); ++i)
      EXPECT_EQ(y[i], i < x.size() ? 0x3fc0 : kGuard) << n << " " << i;
  }
}

TEST_P(Simd, AcrossLanes) {
  const auto lanes = static_cast<size_t>(simd.lanes);
  std::vector<float> x(lanes * lanes), sums(lanes);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * i * 7919) % 1000) - 300.0f;
  simd.sum_each(x.data(), sums.data());
  for (size_t row = 0; row < lanes; ++row) {
    float sum = 0, largest = -kInf;
    for (size_t i = 0; i < lanes; ++i)
      sum += x[row * lanes + i], largest = std::max(largest, x[row * lanes + i]);
    EXPECT_EQ(simd.sum(&x[row * lanes]), sum);  // integers: exact in any order
    EXPECT_EQ(sums[row], sum);
    EXPECT_EQ(simd.largest(&x[row * lanes]), largest);
  }
}

TEST_P(Simd, SplatKeepsTheSignOfZero) {
  std::vector<float> y(static_cast<size_t>(simd.lanes));
  for (const float x : {0.0f, -0.0f, 2.5f, -kInf}) {
    simd.splat(x, y.data());
    for (const float lane : y) EXPECT_EQ(std::bit_cast<uint32_t>(lane), std::bit_cast<uint32_t>(x));
  }
}

}  // namespace
}  // namespace intarsia
