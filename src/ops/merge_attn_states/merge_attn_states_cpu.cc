#include <cmath>
#include <limits>

#include "src/core/cpu/rows.h"
#include "src/core/cpu/simd.h"
#include "src/core/dispatch.h"
#include "src/ops/merge_attn_states/merge_attn_states.h"

namespace intarsia {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// How much of each set a row takes.
struct Weights {
  float prefix, suffix, lse;
};

Weights WeightsOf(float prefix_lse, float suffix_lse) {
  const float p = prefix_lse == kInfinity ? -kInfinity : prefix_lse;
  const float s = suffix_lse == kInfinity ? -kInfinity : suffix_lse;
  const float top = p > s ? p : s;
  if (p == -kInfinity && s == -kInfinity) return {1.0f, 0.0f, -kInfinity};
  const float e_prefix = ::expf(p - top), e_suffix = ::expf(s - top), sum = e_prefix + e_suffix;
  return {e_prefix / sum, e_suffix / sum, top + ::logf(sum)};
}

// Nothing for a weight of 0, even if x is NaN.
template <class T>
[[gnu::always_inline]] inline VecF Share(float weight, const T* x, int lanes) {
  return weight == 0.0f ? VecF{} : weight * LoadN(x, lanes);
}

}  // namespace

template <>
Status RunCpu<kIsa>(const MergeAttnStates& op, const CpuContext& context) {
  return DispatchDType<kF32, kF16, kBF16>("prefix_out", op.out.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    const int64_t tokens = op.out.dim(0), heads = op.out.dim(1), d = op.out.dim(2);
    // A row of the outs, and its place in the transposed lses.
    ForRows(context, tokens * heads, d, [&](int64_t row) {
      const int64_t at = row % heads * tokens + row / heads;
      const Weights w =
          WeightsOf(op.prefix_lse.as<const float>()[at], op.suffix_lse.as<const float>()[at]);
      op.lse.as<float>()[at] = w.lse;
      const T* prefix = op.prefix_out.as<const T>() + row * d;
      const T* suffix = op.suffix_out.as<const T>() + row * d;
      T* out = op.out.as<T>() + row * d;
      ForLanes(d, [&](int64_t i, int lanes) {
        const VecF sum = Share(w.prefix, prefix + i, lanes) + Share(w.suffix, suffix + i, lanes);
        StoreN(out + i, sum, lanes);
      });
    });
    return {};
  });
}

}  // namespace intarsia
