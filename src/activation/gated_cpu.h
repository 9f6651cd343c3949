// Gated activations on the CPU. For <op>_cpu.cc files only, like simd.h.
#pragma once
#include "src/activation/activations_cpu.h"
#include "src/activation/gated.h"
#include "src/core/cpu/rows.h"
#include "src/core/dispatch.h"

namespace intarsia {
namespace {

template <class Activation>
Status RunGated(const GatedActivation& op, const CpuContext& context) {
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    const GatedRows<T> all(op);
    ForRows(context, all.rows, all.n, [&](int64_t row) {
      const T* gate = all.gate + row * all.gate_stride;
      const T* up = all.up + row * all.up_stride;
      T* out = all.out + row * all.n;
      ForLanes(all.n, [&](int64_t i, int lanes) {
        const VecF activated = RoundTo(Activation{}(LoadN(gate + i, lanes)), T{});
        StoreN(out + i, activated * LoadN(up + i, lanes), lanes);
      });
    });
    return {};
  });
}

}  // namespace
}  // namespace intarsia
