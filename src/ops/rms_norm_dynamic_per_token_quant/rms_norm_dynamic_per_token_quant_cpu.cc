#include "src/core/cpu/simd_8bit.h"
#include "src/core/dispatch.h"
#include "src/norm/norm_row_cpu.h"
#include "src/ops/rms_norm_dynamic_per_token_quant/rms_norm_dynamic_per_token_quant.h"

namespace intarsia {

namespace {

template <class Code>
Status RunRows(const RmsNormDynamicPerTokenQuant& op, const CpuContext& context) {
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    const int64_t n = op.x.dim(-1), x_stride = RowStride(op.x);
    const int64_t residual_stride = op.residual ? RowStride(*op.residual) : 0;
    const int64_t residual_out_stride = op.residual ? RowStride(op.residual_out) : 0;
    const NormRow<T> norm(n, op.weight, op.eps, op.rounding);
    const RowRule rule = NormedRule(op.quant_dtype, op.scale_ub);
    ForRows(context, op.scale.size(), n, [&](int64_t row) {
      const T* x = op.x.as<const T>() + row * x_stride;
      Code* q = op.q.as<Code>() + row * n;
      SumRow<T> sum{x};
      if (op.residual)
        sum = {x, op.residual->as<const T>() + row * residual_stride,
               op.residual_out.as<T>() + row * residual_out_stride};
      const auto value = [&](int64_t i, int lanes) {
        const VecF unrounded = sum.At(i, lanes);
        return norm.before_weight() ? unrounded : RoundTo(unrounded, T{});
      };
      const float rstd = norm.Rstd(value);
      VecF largest = {};
      norm.ForEach(value, rstd,
                   [&](int64_t, VecF y, int) { largest = Max(Abs(RoundTo(y, T{})), largest); });
      const auto [scale, scaling] = rule.Of(Largest(largest));
      op.scale.as<float>()[row] = scale;
      norm.ForEach(value, rstd, [&, scaling = scaling](int64_t i, VecF y, int lanes) {
        sum.Store(i, lanes);  // only now, for it may be written in place
        StoreN(q + i, scaling(RoundTo(y, T{})), lanes);
      });
    });
    return {};
  });
}

}  // namespace

template <>
Status RunCpu<kIsa>(const RmsNormDynamicPerTokenQuant& op, const CpuContext& context) {
  return op.q.dtype == kI8 ? RunRows<I8>(op, context) : RunRows<F8E4M3>(op, context);
}

}  // namespace intarsia
