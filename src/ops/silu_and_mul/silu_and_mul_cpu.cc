#include "src/core/cpu/rows.h"
#include "src/core/cpu/simd.h"
#include "src/core/dispatch.h"
#include "src/ops/silu_and_mul/silu_and_mul.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const SiluAndMul& op, const CpuContext& context) {
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    const int64_t n = op.out.dim(-1), row_stride = op.x.dim(-1);
    ForRows(context, Rows(op.out, n), n, [&](int64_t row) {
      const T* gate = op.x.as<const T>() + row * row_stride;
      const T* up = op.up ? op.up->as<const T>() + row * n : gate + n;
      T* out = op.out.as<T>() + row * n;
      ForLanes(n, [&](int64_t i, int lanes) {
        const VecF g = LoadN(gate + i, lanes);
        const VecF silu = g / (1.0f + Exp(-g));
        StoreN(out + i, RoundTo(silu, T{}) * LoadN(up + i, lanes), lanes);
      });
    });
    return {};
  });
}

}  // namespace intarsia
