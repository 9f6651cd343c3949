// One row of a layer norm. For <op>_cpu.cc files only, like simd.h.
#pragma once
#include <cmath>

#include "src/core/cpu/rows.h"
#include "src/core/cpu/simd.h"
#include "src/core/tensor_view.h"

namespace intarsia {
namespace {

// A number for each column, of type T or f32, or none.
template <class T>
class Columns {
 public:
  explicit Columns(const Optional& columns) {
    if (!columns) return;
    if (columns->dtype == DType::kF32)
      f32_ = columns->as<const float>();
    else
      t_ = columns->as<const T>();
  }
  [[gnu::always_inline]] VecF At(int64_t i, int lanes, float absent) const {
    if (f32_) return LoadN(f32_ + i, lanes);
    return t_ ? LoadN(t_ + i, lanes) : Splat(absent);
  }

 private:
  const T* t_ = nullptr;  // at most one of the two is set
  const float* f32_ = nullptr;
};

template <class T>
class LayerRow {
 public:
  LayerRow(int64_t n, const Optional& weight, const Optional& bias, float eps)
      : n_(n), eps_(eps), weight_(weight), bias_(bias) {}

  struct Moments {
    float mean, rstd;
  };
  // The variance is that of the differences, which a mean far from 0 leaves exact.
  [[gnu::always_inline]] Moments Of(const T* x) const {
    VecF sum = {}, squares = {};
    ForLanes(n_, [&](int64_t i, int lanes) { sum += LoadN(x + i, lanes); });
    const float mean = Sum(sum) / static_cast<float>(n_);
    ForLanes(n_, [&](int64_t i, int lanes) {
      float part[kLanes];
      Store(part, LoadN(x + i, lanes) - mean);
      const VecF difference = LoadN(part, lanes);
      squares += difference * difference;
    });
    return {mean, 1.0f / std::sqrt(Sum(squares) / static_cast<float>(n_) + eps_)};
  }

  // use(i, y, lanes) for each register y of (x - mean) * rstd * weight + bias, not yet rounded to
  // T.
  template <class Use>
  [[gnu::always_inline]] void ForEach(const T* x, const Moments& moments, Use use) const {
    ForLanes(n_, [&](int64_t i, int lanes) {
      // All loads first: GCC makes an FMA of product and sum in one basic block alone, and every op
      // is to round alike.
      const VecF value = LoadN(x + i, lanes), weight = weight_.At(i, lanes, 1.0f),
                 bias = bias_.At(i, lanes, 0.0f);
      use(i, (value - moments.mean) * moments.rstd * weight + bias, lanes);
    });
  }

 private:
  int64_t n_;
  float eps_;
  Columns<T> weight_, bias_;
};

}  // namespace
}  // namespace intarsia
