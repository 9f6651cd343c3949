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

TensorView Rows(void* data, DType dtype, int64_t rows, int64_t columns) {
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.rank = 2;
  view.dims = {rows, columns};
  view.strides = {columns, 1};
  return view;
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
  norm.out = Rows(workspace.data, x.dtype, x.rows(), x.dim(-1));
  return norm;
}

TensorView FusedLinearQuantized::Sums(DType dtype) const {
  return Rows(workspace.as<float>() + NormedFloats(*this), dtype, x.rows(),
              packed.dim(0) * matmul::kTileRows);
}

}  // namespace intarsia
