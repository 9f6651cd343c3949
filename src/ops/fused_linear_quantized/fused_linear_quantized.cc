#include "src/ops/fused_linear_quantized/fused_linear_quantized.h"

#include "src/core/checked.h"
#include "src/core/round.h"

namespace intarsia {
namespace {

// In f32 numbers, at a multiple of 16 bytes.
int64_t NormedFloats(const FusedLinearQuantized& op) {
  if (!op.norm_weight) return 0;
  return RoundUp<int64_t>(CeilDiv<int64_t>(BoundedProduct({op.x.size(), Bytes(op.x.dtype)}), 4), 4);
}
int64_t SumFloats(const FusedLinearQuantized& op) {
  if (!op.has_gates()) return 0;
  return BoundedProduct({op.x.rows(), op.packed.dim(0), matmul::kTileRows});
}

}  // namespace

Status FusedLinearQuantized::Check() const {
  INTARSIA_RETURN_IF_ERROR(QuantizedLinear::Check());
  if (has_gates() && residual)
    return InvalidArgument(
        Text("residual is given beside gating=", gating, ", expected one of both"));
  return {};
}

std::array<int64_t, 2> FusedLinearQuantized::WorkspaceDims() const {
  return {1, NormedFloats(*this) + SumFloats(*this)};
}

Status FusedLinearQuantized::CheckWorkspace() const {
  const int64_t floats = workspace.size(), needed = WorkspaceDims()[1];
  if (floats >= needed) return {};
  return InvalidArgument(Text("workspace has ", floats, " numbers, expected at least ", needed));
}

matmul::QuantizedParams FusedLinearQuantized::WithResidual() const {
  matmul::QuantizedParams params = ToParams();
  if (residual) params.residual = residual->data;
  return params;
}

RmsNorm FusedLinearQuantized::Norm() const {
  RmsNorm norm;
  norm.x = x, norm.weight = norm_weight, norm.eps = eps;
  norm.out = x;
  norm.out.data = workspace.data;
  return norm;
}

TensorView FusedLinearQuantized::Sums(DType dtype) const {
  TensorView sums;
  sums.data = workspace.as<float>() + NormedFloats(*this);
  sums.dtype = dtype;
  sums.rank = 2;
  sums.dims = {x.rows(), packed.dim(0) * matmul::kTileRows};
  sums.strides = {sums.dims[1], 1};
  return sums;
}

}  // namespace intarsia
