#include "src/core/dispatch.h"
#include "src/norm/norm_row_cpu.h"
#include "src/ops/fused_add_rms_norm/fused_add_rms_norm.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const FusedAddRmsNorm& op, const CpuContext& context) {
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    const int64_t n = op.x.dim(-1);
    const NormRow<T> norm(n, op.weight, op.eps, op.rounding);
    ForRows(context, Rows(op.x, n), n, [&](int64_t row) {
      const T* x = op.x.as<const T>() + row * n;
      const T* residual = op.residual.as<const T>() + row * n;
      T* residual_out = op.residual_out.as<T>() + row * n;
      T* out = op.out.as<T>() + row * n;
      const auto sum = [&](int64_t i, int lanes) {
        return LoadN(x + i, lanes) + LoadN(residual + i, lanes);
      };
      const auto store_sum = [&](int64_t i, int lanes) {
        StoreN(residual_out + i, sum(i, lanes), lanes);
      };
      if (norm.before_weight()) {
        // out and residual_out may be x and residual themselves: the sum is taken again for each
        // register of the second pass just before both are written.
        norm(sum, store_sum, out);
      } else {
        ForLanes(n, store_sum);
        norm([&](int64_t i, int lanes) { return LoadN(residual_out + i, lanes); }, out);
      }
    });
    return {};
  });
}

}  // namespace intarsia
