#include "src/core/cpu/simd_8bit.h"
#include "tests/core/simd_functions.h"

namespace intarsia {
namespace {

// y[i] = fn(x[i])
template <class From, class To, class Fn>
void Map(const From* x, int64_t n, To* y, Fn fn) {
  ForLanes(n, [&](int64_t i, int lanes) { StoreN(y + i, fn(LoadN(x + i, lanes)), lanes); });
}

template <class T, class Bits>
void LoadAll(const Bits* x, int64_t n, float* y) {
  Map(reinterpret_cast<const T*>(x), n, y, [](VecF v) { return v; });
}
template <class T, class Bits>
void StoreAll(const float* x, int64_t n, Bits* y) {
  Map(x, n, reinterpret_cast<T*>(y), [](VecF v) { return v; });
}
template <class T>
void RoundAll(const float* x, int64_t n, float* y) {
  Map(x, n, y, [](VecF v) { return RoundTo(v, T{}); });
}

template <class T>
constexpr SimdFunctions::EightBit kEightBit = {LoadAll<T, uint8_t>, StoreAll<T, uint8_t>,
                                               RoundAll<T>};

}  // namespace

template <>
const SimdFunctions& GetSimdFunctions<kIsa>() {
  static constexpr SimdFunctions kFunctions = {
      .lanes = kLanes,
      .exp = [](const float* x, int64_t n,
                float* y) { Map(x, n, y, [](VecF v) { return Exp(v); }); },
      .tanh = [](const float* x, int64_t n,
                 float* y) { Map(x, n, y, [](VecF v) { return Tanh(v); }); },
      .normal_cdf = [](const float* x, int64_t n,
                       float* y) { Map(x, n, y, [](VecF v) { return NormalCdf(v); }); },
      .load_f16 = LoadAll<F16, uint16_t>,
      .load_bf16 = LoadAll<BF16, uint16_t>,
      .store_f16 = StoreAll<F16, uint16_t>,
      .store_bf16 = StoreAll<BF16, uint16_t>,
      .round_to_f16 = RoundAll<F16>,
      .round_to_bf16 = RoundAll<BF16>,
      .f8e4m3 = kEightBit<F8E4M3>,
      .f8e5m2 = kEightBit<F8E5M2>,
      .i8 = kEightBit<I8>,
      .sum = [](const float* x) { return Sum(Load(x)); },
      .largest = [](const float* x) { return Largest(Load(x)); },
      .splat = [](float x, float* y) { Store(y, Splat(x)); },
      .sum_each =
          [](const float* x, float* y) {
            VecF rows[kLanes];
            for (int i = 0; i < kLanes; ++i) rows[i] = Load(x + i * kLanes);
            Store(y, SumEach(rows));
          },
  };
  return kFunctions;
}

}  // namespace intarsia
