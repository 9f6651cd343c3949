#include "src/core/dispatch.h"
#include "src/norm/norm_row_cpu.h"
#include "src/ops/fused_add_rms_norm/fused_add_rms_norm.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const FusedAddRmsNorm& op, const CpuContext& context) {
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    const int64_t n = op.x.dim(-1), x_stride = RowStride(op.x), out_stride = RowStride(op.out);
    const int64_t residual_stride = RowStride(op.residual);
    const int64_t residual_out_stride = RowStride(op.residual_out);
    const NormRow<T> norm(n, op.weight, op.eps, op.rounding);
    ForRows(context, Rows(op.x, n), n, [&](int64_t row) {
      const SumRow<T> sum{op.x.as<const T>() + row * x_stride,
                          op.residual.as<const T>() + row * residual_stride,
                          op.residual_out.as<T>() + row * residual_out_stride};
      T* out = op.out.as<T>() + row * out_stride;  // may be x: its element i has been read then
      sum.Normed(norm, [&](int64_t i, VecF y, int lanes) { StoreN(out + i, y, lanes); });
    });
    return {};
  });
}

}  // namespace intarsia
