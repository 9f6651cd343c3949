// simd_8bit.h against tables of all codes, for each instruction set that this machine has.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "src/core/native_f16.h"
#include "tests/core/simd_fixture.h"

namespace intarsia {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// An 8-bit type by what its codes stand for.
struct Type {
  const char* name;
  SimdFunctions::EightBit SimdFunctions::* functions;
  std::vector<float> values;   // of each code
  std::vector<uint8_t> order;  // the codes of finite numbers >= 0, ascending
  uint8_t nan;                 // the code that a NaN becomes
  uint8_t (*negate)(uint8_t);
  uint8_t lowest = 0;  // int8's -128, which has no counterpart

  // The code nearest to x; between two, that with the even mantissa.
  uint8_t Nearest(float x) const {
    if (std::isnan(x)) return nan;
    if (lowest != 0 && x <= -127.5f) return lowest;
    const double size = std::abs(static_cast<double>(x));
    size_t low = 0, high = order.size() - 1;
    while (high - low > 1) {
      const size_t middle = (low + high) / 2;
      (values[order[middle]] <= size ? low : high) = middle;
    }
    const double below = size - static_cast<double>(values[order[low]]);
    const double above = static_cast<double>(values[order[high]]) - size;
    const bool up = above < below || (above == below && order[high] % 2 == 0);
    const uint8_t code = order[up ? high : low];
    return std::signbit(x) ? negate(code) : code;
  }
};

Type MakeF8(const char* name, SimdFunctions::EightBit SimdFunctions::* functions, int mantissa_bits,
            int bias, int largest, bool infinity) {
  Type type{name, functions, std::vector<float>(256),
            {},   0x7f,      [](uint8_t code) { return static_cast<uint8_t>(code | 0x80); }};
  for (int code = 0; code < 256; ++code) {
    const int size = code & 0x7f, exponent = size >> mantissa_bits;
    const int mantissa = size & ((1 << mantissa_bits) - 1), one = exponent ? 1 << mantissa_bits : 0;
    float value = std::ldexp(static_cast<float>(mantissa + one),
                             std::max(exponent, 1) - bias - mantissa_bits);
    if (size > largest) value = infinity && size == largest + 1 ? kInf : kNaN;
    type.values[static_cast<size_t>(code)] = code & 0x80 ? -value : value;
    if (code <= largest) type.order.push_back(static_cast<uint8_t>(code));
  }
  return type;
}

Type MakeI8() {
  Type type{.name = "i8",
            .functions = &SimdFunctions::i8,
            .values = std::vector<float>(256),
            .order = {},
            .nan = 0,
            .negate = [](uint8_t code) { return static_cast<uint8_t>(-code); },
            .lowest = 0x80};
  for (int code = 0; code < 256; ++code) {
    type.values[static_cast<size_t>(code)] = static_cast<float>(static_cast<int8_t>(code));
    if (code < 128) type.order.push_back(static_cast<uint8_t>(code));
  }
  return type;
}

const std::vector<Type>& Types() {
  static const std::vector<Type> kTypes = {
      MakeF8("f8e4m3fn", &SimdFunctions::f8e4m3, 3, 7, 0x7e, false),
      MakeF8("f8e5m2", &SimdFunctions::f8e5m2, 2, 15, 0x7b, true), MakeI8()};
  return kTypes;
}

class Simd8Bit : public Simd {
 protected:
  void ExpectStores(const Type& type, const std::vector<float>& x) const {
    const SimdFunctions::EightBit& functions = simd.*type.functions;
    std::vector<uint8_t> stored(x.size());
    std::vector<float> rounded(x.size());
    functions.store(x.data(), static_cast<int64_t>(x.size()), stored.data());
    functions.round_to(x.data(), static_cast<int64_t>(x.size()), rounded.data());
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(stored[i], type.Nearest(x[i]))
          << type.name << " " << x[i] << " " << std::bit_cast<uint32_t>(x[i]);
      const float value = type.values[stored[i]];
      if (std::isnan(value))
        ASSERT_TRUE(std::isnan(rounded[i])) << type.name << " " << x[i];
      else
        ASSERT_EQ(std::bit_cast<uint32_t>(rounded[i]), std::bit_cast<uint32_t>(value)) << type.name;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, Simd8Bit, testing::ValuesIn(kIsas), IsaName);

TEST_P(Simd8Bit, LoadsEveryCode) {
  std::vector<uint8_t> codes(256);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
  for (const Type& type : Types()) {
    std::vector<float> got(codes.size());
    (simd.*type.functions).load(codes.data(), 256, got.data());
    for (size_t i = 0; i < codes.size(); ++i) {
      if (std::isnan(type.values[i]))
        ASSERT_TRUE(std::isnan(got[i])) << type.name << " " << i;
      else
        ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(type.values[i]))
            << type.name << " " << i;
    }
  }
}

TEST_P(Simd8Bit, StoresNumbersTiesAndWhatLiesBesideThem) {
  for (const Type& type : Types()) {
    std::vector<float> x = {kInf, -kInf, kNaN, -kNaN, 3e38f, 1e-45f, -1e-45f, -1e-30f};
    for (size_t i = 0; i < type.order.size(); ++i) {
      const float value = type.values[type.order[i]];
      // Beyond the largest, where a wider format would have its next number.
      const float next = i + 1 < type.order.size() ? type.values[type.order[i + 1]]
                                                   : 2 * value - type.values[type.order[i - 1]];
      const float tie = (value + next) / 2;  // exact
      for (const float at : {value, tie})
        for (const float beside : {std::nextafter(at, -kInf), at, std::nextafter(at, kInf)})
          x.push_back(beside), x.push_back(-beside);
    }
    ExpectStores(type, x);
  }
}

TEST_P(Simd8Bit, StoresEveryF16AndBF16AndASweepOfF32) {
  for (const Type& type : Types()) {
    std::vector<float> x;
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      x.push_back(static_cast<float>(std::bit_cast<NativeF16>(static_cast<uint16_t>(bits))));
      x.push_back(std::bit_cast<float>(bits << 16));
    }
    for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 10007)
      x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
    ExpectStores(type, x);
  }
}

TEST_P(Simd8Bit, PartsLeaveTheRestAlone) {
  constexpr uint8_t kGuard = 0x12;
  for (const Type& type : Types()) {
    for (int64_t n = 0; n <= 3 * simd.lanes; ++n) {
      std::vector<float> x(static_cast<size_t>(n), 1.0f);  // its size says where reading must end
      std::vector<uint8_t> y(static_cast<size_t>(n) + 32, kGuard);
      (simd.*type.functions).store(x.data(), n, y.data());
      for (size_t i = 0; i < y.size(); ++i)
        ASSERT_EQ(y[i], i < x.size() ? type.Nearest(1.0f) : kGuard) << type.name << " " << n;
    }
  }
}

}  // namespace
}  // namespace intarsia
