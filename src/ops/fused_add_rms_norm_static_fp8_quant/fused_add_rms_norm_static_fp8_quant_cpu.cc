#include "src/core/cpu/simd_8bit.h"
#include "src/core/dispatch.h"
#include "src/norm/norm_row_cpu.h"
#include "src/ops/fused_add_rms_norm_static_fp8_quant/fused_add_rms_norm_static_fp8_quant.h"
#include "src/quant/scaling.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const FusedAddRmsNormStaticFp8Quant& op, const CpuContext& context) {
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    const int64_t n = op.x.dim(-1), x_stride = RowStride(op.x);
    const int64_t residual_stride = RowStride(op.residual);
    const int64_t residual_out_stride = RowStride(op.residual_out);
    const NormRow<T> norm(n, op.weight, op.eps, op.rounding);
    const Scaling scaling = GivenScale(*op.scale.as<const float>(), false);
    ForRows(context, Rows(op.x, n), n, [&](int64_t row) {
      const SumRow<T> sum{op.x.as<const T>() + row * x_stride,
                          op.residual.as<const T>() + row * residual_stride,
                          op.residual_out.as<T>() + row * residual_out_stride};
      auto* q = op.q.as<F8E4M3>() + row * n;
      sum.Normed(norm, [&](int64_t i, VecF y, int lanes) {
        StoreN(q + i, scaling(RoundTo(y, T{})), lanes);
      });
    });
    return {};
  });
}

}  // namespace intarsia
