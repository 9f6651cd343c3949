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

// The matrices of a product, without its rows.
matmul::QuantizedParams ParamsOf(const FusedExpertsQuantized& op, const TensorView& codes,
                                 const TensorView& scales, const Optional& zeros, int64_t columns,
                                 int64_t group) {
  matmul::QuantizedParams params{.dtype = op.x.dtype,
                                 .out_dtype = op.x.dtype,
                                 .format = *matmul::FormatOf(op.format),
                                 .k = columns,
                                 .tiles = codes.dim(1),
                                 .packed = codes.as<const uint8_t>(),
                                 .groups = scales.dim(2),
                                 .scales = {.data = scales.data, .dtype = scales.dtype},
                                 .zeros = {},
                                 .points = op.zeros_are == "points"};
  params.group = group == 0 ? params.blocks() * matmul::kBlockColumns : group;
  if (zeros) params.zeros = {.data = zeros->data, .dtype = zeros->dtype};
  return params;
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

Status FusedExpertsQuantized::Check() const {
  INTARSIA_RETURN_IF_ERROR(matmul::CheckColumns({"w1", "nb", w1.dim(2)},
                                                {"w1_scales", "ng", w1_scales.dim(2)},
                                                {"16*u", x.dim(-1)}, {"w1_group", w1_group}));
  INTARSIA_RETURN_IF_ERROR(matmul::CheckColumns({"w2", "ib", w2.dim(2)},
                                                {"w2_scales", "ig", w2_scales.dim(2)},
                                                {"8*c", 8 * w1.dim(1)}, {"w2_group", w2_group}));
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
  return Product(ParamsOf(*this, w1, w1_scales, w1_zeros, pass.n, w1_group), pass.FirstProduct());
}

matmul::QuantizedGroupsParams FusedExpertsQuantized::GatedProduct(const ExpertsPass& pass) const {
  matmul::QuantizedGroupsParams product = FirstProduct(pass);
  product.each.gating = Gating::Of(activation, limit, alpha);
  product.each.out = pass.gated;
  return product;
}

matmul::QuantizedGroupsParams FusedExpertsQuantized::SecondProduct(const ExpertsPass& pass) const {
  return Product(ParamsOf(*this, w2, w2_scales, w2_zeros, pass.i, w2_group), pass.SecondProduct());
}

}  // namespace intarsia
