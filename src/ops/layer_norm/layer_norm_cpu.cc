#include "src/core/dispatch.h"
#include "src/norm/layer_row_cpu.h"
#include "src/ops/layer_norm/layer_norm.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const LayerNorm& op, const CpuContext& context) {
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    const int64_t n = op.x.dim(-1), x_stride = RowStride(op.x), out_stride = RowStride(op.out);
    const LayerRow<T> norm(n, op.weight, op.bias, op.eps);
    ForRows(context, Rows(op.x, n), n, [&](int64_t row) {
      const T* x = op.x.as<const T>() + row * x_stride;
      T* out = op.out.as<T>() + row * out_stride;
      norm.ForEach(x, norm.Of(x), [&](int64_t i, VecF y, int lanes) { StoreN(out + i, y, lanes); });
    });
    return {};
  });
}

}  // namespace intarsia
