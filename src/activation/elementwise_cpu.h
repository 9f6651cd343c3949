// Elementwise activations on the CPU. For <op>_cpu.cc files only, like simd.h.
#pragma once
#include <algorithm>
#include <type_traits>

#include "src/activation/activations_cpu.h"
#include "src/activation/elementwise.h"
#include "src/core/cpu/rows.h"
#include "src/core/dispatch.h"
#include "src/core/round.h"

namespace intarsia {
namespace {

// An activation that rounds its steps to T takes a T, too.
template <class Activation>
Status RunElementwise(const ElementwiseActivation& op, const CpuContext& context) {
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    const int64_t size = op.x.size(), n = kTileElements;
    ForRows(context, CeilDiv(size, n), n, [&](int64_t row) {
      const T* x = op.x.as<const T>() + row * n;
      T* out = op.out.as<T>() + row * n;
      ForLanes(std::min(n, size - row * n), [&](int64_t i, int lanes) {
        const VecF value = LoadN(x + i, lanes);
        if constexpr (std::is_invocable_v<Activation, VecF, T>)
          StoreN(out + i, Activation{}(value, T{}), lanes);
        else
          StoreN(out + i, Activation{}(value), lanes);
      });
    });
    return {};
  });
}

}  // namespace
}  // namespace intarsia
