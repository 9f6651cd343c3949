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
  int64_t n() const { return n_; }
  bool before_weight() const { return before_weight_; }

  // 1 / sqrt(mean(value^2) + eps), where value(i, lanes) gives a register of the row in f32.
  template <class Value>
  [[gnu::always_inline]] float Rstd(Value value) const {
    VecF squares = {};
    ForLanes(n_, [&](int64_t i, int lanes) {
      const VecF x = value(i, lanes);
      squares += x * x;
    });
    return 1.0f / std::sqrt(Sum(squares) / static_cast<float>(n_) + eps_);
  }

  // use(i, y, lanes) for each register y of value * rstd * weight, not yet rounded to T.
  template <class Value, class Use>
  [[gnu::always_inline]] void ForEach(Value value, float rstd, Use use) const {
    ForPart(0, n_, value, rstd, use);
  }
  // The same for `count` columns from `first` on.
  template <class Value, class Use>
  [[gnu::always_inline]] void ForPart(int64_t first, int64_t count, Value value, float rstd,
                                      Use use) const {
    ForLanes(count, [&](int64_t of_part, int lanes) {
      const int64_t i = first + of_part;
      const VecF y = value(i, lanes) * rstd;
      use(i, Weighted(before_weight_ ? RoundTo(y, T{}) : y, i, lanes), lanes);
    });
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

// The row x + residual, which is stored rounded; without a residual x, which is not.
template <class T>
struct SumRow {
  const T* x;
  const T* residual = nullptr;
  T* out = nullptr;  // may be x or residual

  [[gnu::always_inline]] VecF At(int64_t i, int lanes) const {
    const VecF value = LoadN(x + i, lanes);
    return residual ? value + LoadN(residual + i, lanes) : value;
  }
  [[gnu::always_inline]] void Store(int64_t i, int lanes) const {
    if (residual) StoreN(out + i, At(i, lanes), lanes);
  }

  // Stores the sum, and gives use(i, y, lanes) each register of its norm: of the rounded sum, or
  // with rounding "before_weight" of the unrounded one.
  template <class Use>
  [[gnu::always_inline]] void Normed(const NormRow<T>& norm, Use use) const {
    if (norm.before_weight()) {
      const auto sum = [&](int64_t i, int lanes) { return At(i, lanes); };
      norm.ForEach(sum, norm.Rstd(sum), [&](int64_t i, VecF y, int lanes) {
        Store(i, lanes);  // only now, for `out` may be an operand
        use(i, y, lanes);
      });
    } else {
      ForLanes(norm.n(), [&](int64_t i, int lanes) { Store(i, lanes); });
      const auto rounded = [&](int64_t i, int lanes) { return LoadN(out + i, lanes); };
      norm.ForEach(rounded, norm.Rstd(rounded), use);
    }
  }
};

}  // namespace
}  // namespace intarsia
