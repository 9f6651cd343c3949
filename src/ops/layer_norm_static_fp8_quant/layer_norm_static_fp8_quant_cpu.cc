#include "src/core/cpu/simd_8bit.h"
#include "src/core/dispatch.h"
#include "src/norm/layer_row_cpu.h"
#include "src/ops/layer_norm_static_fp8_quant/layer_norm_static_fp8_quant.h"
#include "src/quant/scaling.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const LayerNormStaticFp8Quant& op, const CpuContext& context) {
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    const int64_t n = op.x.dim(-1), x_stride = RowStride(op.x);
    const LayerRow<T> norm(n, op.weight, op.bias, op.eps);
    const Scaling scaling = GivenScale(*op.scale.as<const float>(), false);
    ForRows(context, Rows(op.x, n), n, [&](int64_t row) {
      const T* x = op.x.as<const T>() + row * x_stride;
      auto* q = op.q.as<F8E4M3>() + row * n;
      norm.ForEach(x, norm.Of(x), [&](int64_t i, VecF y, int lanes) {
        StoreN(q + i, scaling(RoundTo(y, T{})), lanes);
      });
    });
    return {};
  });
}

}  // namespace intarsia
