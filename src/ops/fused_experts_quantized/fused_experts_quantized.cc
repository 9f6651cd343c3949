#include "src/ops/fused_experts_quantized/fused_experts_quantized.h"

namespace intarsia {
namespace {

TensorView Matrices(const TensorView& codes, DType dtype, int64_t rows, int64_t columns) {
  TensorView view;
  view.data = codes.data;
  view.dtype = dtype;
  view.rank = 3;
  view.dims = {codes.dim(0), rows, columns};
  return view;
}

// Takes rows, bias and result from the product with plain matrices.
matmul::QuantizedGroupsParams Product(matmul::QuantizedParams each,
                                      const matmul::GroupedParams& plain) {
  each.x = plain.x;
  each.rows = plain.rows;
  each.bias = plain.bias;
  each.out = plain.out;
  return {.each = each, .x_rows = plain.x_rows, .groups = plain.groups};
}

}  // namespace

matmul::WeightOperands FusedExpertsQuantized::FirstWeight() const {
  return {.packed_name = "w1",
          .prefix = "w1_",
          .letter = "n",
          .packed = w1,
          .scales = w1_scales,
          .zeros = w1_zeros,
          .outer_scales = w1_outer_scales,
          .outer_zeros = w1_outer_zeros,
          .columns = {"16*u", x.dim(-1)},
          .group = {"w1_group", w1_group},
          .format = format,
          .zeros_are = zeros_are};
}

matmul::WeightOperands FusedExpertsQuantized::SecondWeight() const {
  return {.packed_name = "w2",
          .prefix = "w2_",
          .letter = "i",
          .packed = w2,
          .scales = w2_scales,
          .zeros = w2_zeros,
          .outer_scales = w2_outer_scales,
          .outer_zeros = w2_outer_zeros,
          .columns = {"8*c", 8 * w1.dim(1)},
          .group = {"w2_group", w2_group},
          .format = w2_format == "same" ? format : w2_format,
          .zeros_are = zeros_are};
}

Status FusedExpertsQuantized::Check() const {
  INTARSIA_RETURN_IF_ERROR(FirstWeight().Check());
  INTARSIA_RETURN_IF_ERROR(SecondWeight().Check());
  return Plain().Check();
}

FusedExperts FusedExpertsQuantized::Plain() const {
  const int64_t n = x.dim(-1), i = 8 * w1.dim(1);
  FusedExperts plain;
  plain.x = x;
  plain.w1 = Matrices(w1, x.dtype, 2 * i, n);
  plain.w2 = Matrices(w2, x.dtype, n, i);
  plain.weights = weights;
  plain.ids = ids;
  plain.w1_bias = w1_bias;
  plain.w2_bias = w2_bias;
  plain.expert_map = expert_map;
  plain.activation = activation;
  plain.limit = limit;
  plain.alpha = alpha;
  plain.apply_router_weight_on_input = apply_router_weight_on_input;
  plain.out = out;
  plain.workspace = workspace;
  return plain;
}

std::array<int64_t, 2> FusedExpertsQuantized::WorkspaceDims() const {
  return Plain().WorkspaceDims();
}

matmul::QuantizedGroupsParams FusedExpertsQuantized::FirstProduct(const ExpertsPass& pass) const {
  return Product(FirstWeight().ToParams(x.dtype), pass.FirstProduct());
}

matmul::QuantizedGroupsParams FusedExpertsQuantized::GatedProduct(const ExpertsPass& pass) const {
  matmul::QuantizedGroupsParams product = FirstProduct(pass);
  product.each.gating = Gating::Of(activation, limit, alpha);
  product.each.out = pass.gated;
  return product;
}

matmul::QuantizedGroupsParams FusedExpertsQuantized::SecondProduct(const ExpertsPass& pass) const {
  return Product(SecondWeight().ToParams(x.dtype), pass.SecondProduct());
}

}  // namespace intarsia
