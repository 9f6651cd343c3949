// The steps of fused_experts on a CPU beside its products. For *_cpu.cc files only.
#pragma once
#include "src/activation/gated_cpu.h"
#include "src/core/cpu/rows.h"
#include "src/core/cpu/simd.h"
#include "src/core/dispatch.h"
#include "src/ops/fused_experts/pass.h"

namespace intarsia {
namespace {

// W: float or T.
template <class W>
float WeightOf(const ExpertsPass& pass, int64_t pair) {
  return LoadN(static_cast<const W*>(pass.weights) + pair, 1)[0];
}

// gate and up, weighted and shifted.
[[gnu::always_inline]] inline GateAndUp Shift(GateAndUp x, float weight, const GateAndUp& bias) {
  return {weight * x.gate + bias.gate, weight * x.up + bias.up};
}

template <class T, class W, class Activation>
void Activate(const ExpertsPass& pass, const CpuContext& context, const Activation& act,
              bool in_turn) {
  const int64_t n = pass.i, up = in_turn ? 1 : n;
  ForRows(context, pass.pairs(), n, [&](int64_t pair) {
    const int64_t row = pass.places[pair];
    if (row < 0) return;
    const T* const hidden = static_cast<const T*>(pass.hidden) + row * 2 * n;
    T* const gated = static_cast<T*>(pass.gated) + row * n;
    const bool weighted = pass.weights_on_input;
    const float weight = weighted ? WeightOf<W>(pass, pair) : 1.0f;
    const T* const bias = weighted && pass.w1_bias
                              ? static_cast<const T*>(pass.w1_bias) + pass.ExpertOf(pair) * 2 * n
                              : nullptr;
    ForLanes(n, [&](int64_t i, int lanes) {
      GateAndUp x = LoadBoth(hidden, hidden + up, in_turn, i, lanes);
      if (weighted)
        x = Shift(x, weight, bias ? LoadBoth(bias, bias + up, in_turn, i, lanes) : GateAndUp{});
      StoreN(gated + i, Product(act, x, T{}), lanes);
    });
  });
}

template <class T, class W>
void Sum(const ExpertsPass& pass, const CpuContext& context) {
  const int64_t n = pass.n, k = pass.k;
  ForRows(context, pass.tokens, n * k, [&](int64_t token) {
    T* const out = static_cast<T*>(pass.out) + token * n;
    ForLanes(n, [&](int64_t i, int lanes) {
      VecF sum = {};
      for (int64_t pair = token * k; pair < (token + 1) * k; ++pair) {
        if (pass.places[pair] < 0) continue;
        const T* const term = static_cast<const T*>(pass.down) + pass.places[pair] * n;
        const float weight = pass.weights_on_input ? 1.0f : WeightOf<W>(pass, pair);
        sum += weight * LoadN(term + i, lanes);
      }
      StoreN(out + i, sum, lanes);
    });
  });
}

// first(pass) and second(pass) make the products.
template <class T, class W, class First, class Second>
Status RunPass(const FusedExperts& op, const ExpertsPass& pass, const CpuContext& context,
               First first, Second second) {
  SortPairs(pass);
  if (pass.experts == 0) {
    Sum<T, W>(pass, context);
    return {};
  }
  INTARSIA_RETURN_IF_ERROR(first(pass));
  if (op.activation == "silu")
    Activate<T, W>(pass, context, Silu{}, false);
  else if (op.activation == "gelu_tanh")
    Activate<T, W>(pass, context, GeluTanh{}, false);
  else
    Activate<T, W>(pass, context, SwigluOai{op.alpha, op.limit}, true);
  INTARSIA_RETURN_IF_ERROR(second(pass));
  Sum<T, W>(pass, context);
  return {};
}

template <class First, class Second>
Status RunExperts(const FusedExperts& op, const CpuContext& context, First first, Second second) {
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    return ExpertsPasses(op).ForEach([&](const ExpertsPass& pass) {
      return op.weights.dtype == kType ? RunPass<T, T>(op, pass, context, first, second)
                                       : RunPass<T, float>(op, pass, context, first, second);
    });
  });
}

}  // namespace
}  // namespace intarsia
