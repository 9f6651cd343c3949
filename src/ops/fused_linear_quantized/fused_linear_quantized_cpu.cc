#include "src/activation/gated_cpu.h"
#include "src/ops/fused_linear_quantized/fused_linear_quantized.h"

namespace intarsia {
namespace {

// out = act(gate) up, from sums that are not rounded yet. T: of out.
template <class T, class Activation>
void Gate(const FusedLinearQuantized& op, const CpuContext& context, Activation act) {
  const TensorView sums = op.Sums(DType::kF32);
  const int64_t n = op.out.dim(-1);
  ForRows(context, sums.dim(0), n, [&](int64_t row) {
    const float* const gates = sums.as<const float>() + row * 2 * n;
    T* const out = op.out.as<T>() + row * n;
    ForLanes(n, [&](int64_t i, int lanes) {
      const GateAndUp x{RoundTo(LoadN(gates + i, lanes), T{}),
                        RoundTo(LoadN(gates + n + i, lanes), T{})};
      StoreN(out + i, Product(act, x, T{}), lanes);
    });
  });
}

}  // namespace

template <>
Status RunCpu<kIsa>(const FusedLinearQuantized& op, const CpuContext& context) {
  INTARSIA_RETURN_IF_ERROR(op.CheckWorkspace());
  matmul::QuantizedParams params = op.WithResidual();
  if (op.norm_weight) {
    const RmsNorm norm = op.Norm();
    INTARSIA_RETURN_IF_ERROR(norm.Run(context));
    params.x = norm.out.data;
  }
  if (op.has_gates()) params.out = op.Sums(DType::kF32).data, params.out_dtype = DType::kF32;
  INTARSIA_RETURN_IF_ERROR(matmul::Run(params, context));
  if (!op.has_gates()) return {};
  return DispatchDType<kF32, kF16, kBF16>("out", op.out.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    if (op.gating == "silu")
      Gate<T>(op, context, Silu{});
    else
      Gate<T>(op, context, GeluTanh{});
    return {};
  });
}

}  // namespace intarsia
