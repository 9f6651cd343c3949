#include "src/core/dispatch.h"
#include "src/norm/norm_row_cpu.h"
#include "src/ops/rms_norm/rms_norm.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const RmsNorm& op, const CpuContext& context) {
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    const int64_t n = op.x.dim(-1), x_stride = RowStride(op.x), out_stride = RowStride(op.out);
    const NormRow<T> norm(n, op.weight, op.eps, op.rounding);
    ForRows(context, Rows(op.x, n), n, [&](int64_t row) {
      const T* x = op.x.as<const T>() + row * x_stride;
      T* out = op.out.as<T>() + row * out_stride;
      const auto value = [&](int64_t i, int lanes) { return LoadN(x + i, lanes); };
      norm.ForEach(value, norm.Rstd(value),
                   [&](int64_t i, VecF y, int lanes) { StoreN(out + i, y, lanes); });
    });
    return {};
  });
}

}  // namespace intarsia
