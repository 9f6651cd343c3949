// Gated activations on the CPU. For <op>_cpu.cc files only, like simd.h.
#pragma once
#include <type_traits>

#include "src/activation/activations_cpu.h"
#include "src/activation/gated.h"
#include "src/core/cpu/rows.h"
#include "src/core/dispatch.h"
#include "src/quant/scaling.h"

namespace intarsia {
namespace {

// Code: the type of a quantised product, which then has a scale; void: T.
template <class Activation, class Code = void>
Status RunGated(const GatedActivation& op, const CpuContext& context,
                const TensorView* scale = nullptr) {
  const Scaling scaling = GivenScale(scale ? *scale->as<const float>() : 1.0f, false);
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    using Out = std::conditional_t<std::is_void_v<Code>, T, Code>;
    const GatedRows<T, Out> all(op);
    ForRows(context, all.rows, all.n, [&](int64_t row) {
      const T* gate = all.gate + row * all.gate_stride;
      const T* up = all.up + row * all.up_stride;
      Out* out = all.out + row * all.n;
      ForLanes(all.n, [&](int64_t i, int lanes) {
        const VecF activated = RoundTo(Activation{}(LoadN(gate + i, lanes)), T{});
        const VecF product = activated * LoadN(up + i, lanes);
        StoreN(out + i, std::is_void_v<Code> ? product : scaling(RoundTo(product, T{})), lanes);
      });
    });
    return {};
  });
}

}  // namespace
}  // namespace intarsia
