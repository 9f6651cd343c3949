// Gated activations on the CPU. For <op>_cpu.cc files only, like simd.h.
#pragma once
#include <algorithm>
#include <type_traits>
#include <utility>

#include "src/activation/activations_cpu.h"
#include "src/activation/gated.h"
#include "src/core/cpu/rows.h"
#include "src/core/dispatch.h"
#include "src/quant/scaling.h"

namespace intarsia {
namespace {

// The lanes of a and b, one behind the other, whose number is kFirst modulo 2.
template <int kFirst>
[[gnu::always_inline]] inline VecF EverySecond(VecF a, VecF b) {
  return [&]<int... kLane>(std::integer_sequence<int, kLane...>) __attribute__((always_inline)) {
    return __builtin_shufflevector(a, b, (2 * kLane + kFirst)...);
  }(std::make_integer_sequence<int, kLanes>());
}

struct GateAndUp {
  VecF gate, up;
};
// From element i of a row on.
template <class T>
[[gnu::always_inline]] inline GateAndUp LoadBoth(const T* gate, const T* up, bool in_turn,
                                                 int64_t i, int lanes) {
  if (!in_turn) return {LoadN(gate + i, lanes), LoadN(up + i, lanes)};
  const int first = std::min(2 * lanes, kLanes);
  const VecF a = LoadN(gate + 2 * i, first), b = LoadN(gate + 2 * i + first, 2 * lanes - first);
  return {EverySecond<0>(a, b), EverySecond<1>(a, b)};
}

// A product whose parts meet otherwise than as round_T(act(gate)) * up says so itself.
template <class Activation, class T>
[[gnu::always_inline]] inline VecF Product(const Activation& act, const GateAndUp& x, T t) {
  if constexpr (std::is_invocable_v<Activation, VecF, VecF, T>)
    return act(x.gate, x.up, t);
  else
    return RoundTo(act(x.gate), t) * x.up;
}

// Code: the type of a quantized product, which then has a scale; void: T.
template <class Activation, class Code = void>
Status RunGated(const GatedActivation& op, const CpuContext& context,
                const TensorView* scale = nullptr, Activation act = {},
                GatedOrder order = GatedOrder::kGateFirst) {
  const Scaling scaling = GivenScale(scale ? *scale->as<const float>() : 1.0f, false);
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    using Out = std::conditional_t<std::is_void_v<Code>, T, Code>;
    const GatedRows<T, Out> all(op, order);
    ForRows(context, all.rows, all.n, [&](int64_t row) {
      const T* gate = all.gate + row * all.gate_stride;
      const T* up = all.up + row * all.up_stride;
      Out* out = all.out + row * all.n;
      ForLanes(all.n, [&](int64_t i, int lanes) {
        const VecF product = Product(act, LoadBoth(gate, up, all.in_turn, i, lanes), T{});
        StoreN(out + i, std::is_void_v<Code> ? product : scaling(RoundTo(product, T{})), lanes);
      });
    });
    return {};
  });
}

}  // namespace
}  // namespace intarsia
