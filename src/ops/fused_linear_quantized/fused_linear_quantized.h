// linear_quantized with what a transformer has before and behind it:
//   y = x, or x / sqrt(mean(x^2, last axis) + eps) * norm_weight
//   s = y w^T + bias                                                     (matmul/quantized.h)
//   out = s + residual, or silu_and_mul of s rounded to the type of out, or gelu_tanh_and_mul
// in f32, rounded once, as y is.
//
// A step of few tokens takes less time the fewer calls and kernels it has. The norm and the gates
// are the product's where its kernel takes them (matmul::CanNorm, CanGate), else kernels of their
// own, and what lies between two kernels is in the workspace. The residual is always the product's.
// docs/adr/0028-fused-linear.md says why this is one op.
#pragma once
#include "src/matmul/quantized_linear.h"
#include "src/ops/rms_norm/rms_norm.h"

namespace intarsia {

struct FusedLinearQuantized : QuantizedLinear {
  Optional norm_weight, residual;
  float eps = 1e-6f;
  std::string_view gating = "none";
  TensorView workspace;

  static constexpr auto kSpec = QuantizedLinearSpec(
      "fused_linear_quantized",
      "A linear layer with weights in 8 bits or less, the norm before it, and the gated activation "
      "or the residual behind it.",
      "rms_norm, linear_quantized, silu_and_mul and a sum, one after the other",
      In("x", &QuantizedLinear::x, "... k", "T", "rows"),
      Out("out", &QuantizedLinear::out, "gating=none: ... 16*c | ... 8*c", "out_dtype",
          "the layer's results"),
      In("norm_weight", &FusedLinearQuantized::norm_weight, "k", "T|f32",
         "scale of each column of the normed x; x is not normed if absent"),
      In("residual", &FusedLinearQuantized::residual, "... 16*c", "T",
         "added to the sums before they are rounded"),
      Attr("eps", &FusedLinearQuantized::eps, "added to the mean square").NotNegative(),
      Attr("gating", &FusedLinearQuantized::gating,
           "activation of gates, the first half of the columns, each times its up in the second")
          .OneOf("none|silu|gelu_tanh"),
      Workspace("workspace", &FusedLinearQuantized::workspace));

  Status Check() const;
  std::array<int64_t, 2> WorkspaceDims() const;
  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;

  bool has_gates() const { return gating != "none"; }
  // Whoever calls without XLA may give a smaller one.
  Status CheckWorkspace() const;
  // The product, without norm and gating.
  matmul::QuantizedParams WithResidual() const;
  // The norm, whose result is in the workspace.
  RmsNorm Norm() const;
  // Room for gates and ups in `dtype`.
  TensorView Sums(DType dtype) const;
};

}  // namespace intarsia
