#include "src/ops/fused_linear_quantized/fused_linear_quantized.h"
#include "src/ops/gelu_tanh_and_mul/gelu_tanh_and_mul.h"
#include "src/ops/silu_and_mul/silu_and_mul.h"

namespace intarsia {
namespace {

template <class Activation>
Status Gate(const FusedLinearQuantized& op, const TensorView& sums, const CudaContext& context) {
  Activation gated;
  gated.x = sums;
  gated.out = op.out;
  return gated.Run(context);
}

}  // namespace

Status FusedLinearQuantized::Run(const CudaContext& context) const {
  INTARSIA_RETURN_IF_ERROR(CheckWorkspace());
  matmul::QuantizedParams params = WithResidual();
  if (norm_weight) {
    params.norm = {norm_weight->data, norm_weight->dtype, eps};
    if (!matmul::CanNorm(params, context)) {
      const RmsNorm norm = Norm();
      INTARSIA_RETURN_IF_ERROR(norm.Run(context));
      params.norm = {}, params.x = norm.out.data;
    }
  }
  if (!has_gates()) return matmul::Run(params, context);
  matmul::QuantizedParams gated = params;
  gated.gating = Gating::Of(gating, 0.0f, 0.0f);
  if (matmul::CanGate(gated, context)) return matmul::Run(gated, context);
  const TensorView sums = Sums(out.dtype);
  params.out = sums.data;
  INTARSIA_RETURN_IF_ERROR(matmul::Run(params, context));
  return gating == "silu" ? Gate<SiluAndMul>(*this, sums, context)
                          : Gate<GeluTanhAndMul>(*this, sums, context);
}

}  // namespace intarsia
