#include "src/norm/layer_row_cpu.h"
#include "src/norm/quant_row_cpu.h"
#include "src/ops/layer_norm_dynamic_per_token_quant/layer_norm_dynamic_per_token_quant.h"

namespace intarsia {

namespace {

template <class Code>
Status RunRows(const LayerNormDynamicPerTokenQuant& op, const CpuContext& context) {
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    const int64_t n = op.x.dim(-1), x_stride = RowStride(op.x);
    const LayerRow<T> norm(n, op.weight, op.bias, op.eps);
    const RowRule rule = NormedRule(op.quant_dtype, op.scale_ub);
    ForRows(context, op.scale.size(), n, [&](int64_t row) {
      const T* x = op.x.as<const T>() + row * x_stride;
      const auto moments = norm.Of(x);
      QuantizeRow<T>(
          {1, n}, rule, op.q.as<Code>() + row * n, op.scale.as<float>() + row,
          [&](int64_t, int64_t, auto use) { norm.ForEach(x, moments, use); },
          [](VecF y, int lanes) {
            // Behind the end of a row stands its mean's norm.
            T part[kLanes];
            Store(part, y);
            return LoadN(part, lanes);
          },
          [](int64_t, int) {});
    });
    return {};
  });
}

}  // namespace

template <>
Status RunCpu<kIsa>(const LayerNormDynamicPerTokenQuant& op, const CpuContext& context) {
  return op.q.dtype == kI8 ? RunRows<I8>(op, context) : RunRows<F8E4M3>(op, context);
}

}  // namespace intarsia
