// One row of a root-mean-square norm, for every op that ends in one. For <op>_cpu.cc files only.
#pragma once
#include <cmath>

#include "src/core/cpu/rows.h"
#include "src/core/cpu/simd.h"
#include "src/core/tensor_view.h"

namespace intarsia {
namespace {

template <class T>
class NormRow {
 public:
  NormRow(int64_t n, const Optional& weight, float eps, std::string_view rounding)
      : n_(n), eps_(eps), before_weight_(rounding == "before_weight") {
    if (!weight) return;
    if (weight->dtype == DType::kF32)
      weight_f32_ = weight->as<const float>();
    else
      weight_ = weight->as<const T>();
  }
  bool before_weight() const { return before_weight_; }

  // out[i] = value(i) * rstd * weight[i], where value(i, lanes) gives a register of the row in f32.
  // before_store(i, lanes) runs when value(i) has been read for the last time.
  template <class Value, class BeforeStore>
  [[gnu::always_inline]] void operator()(Value value, BeforeStore before_store, T* out) const {
    VecF squares = {};
    ForLanes(n_, [&](int64_t i, int lanes) {
      const VecF x = value(i, lanes);
      squares += x * x;
    });
    const float rstd = 1.0f / std::sqrt(Sum(squares) / static_cast<float>(n_) + eps_);
    ForLanes(n_, [&](int64_t i, int lanes) {
      const VecF y = value(i, lanes) * rstd;
      before_store(i, lanes);
      StoreN(out + i, Weighted(before_weight_ ? RoundTo(y, T{}) : y, i, lanes), lanes);
    });
  }
  template <class Value>
  [[gnu::always_inline]] void operator()(Value value, T* out) const {
    (*this)(value, [](int64_t, int) {}, out);
  }

 private:
  [[gnu::always_inline]] VecF Weighted(VecF y, int64_t i, int lanes) const {
    if (weight_f32_) return y * LoadN(weight_f32_ + i, lanes);
    return weight_ ? y * LoadN(weight_ + i, lanes) : y;
  }

  int64_t n_;
  float eps_;
  bool before_weight_;
  const T* weight_ = nullptr;  // at most one of the two is set
  const float* weight_f32_ = nullptr;
};

}  // namespace
}  // namespace intarsia
