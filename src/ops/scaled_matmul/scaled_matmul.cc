#include "src/ops/scaled_matmul/scaled_matmul.h"

namespace intarsia {

Status ScaledMatmul::Check() const {
  const int64_t blocks = CeilDiv<int64_t>(x.dim(-1), matmul::kScaleBlock);
  const int64_t row_blocks = CeilDiv<int64_t>(w.dim(0), matmul::kScaleBlock);
  const int64_t kb = x_scales.dim(-1);
  if (kb != 1 && kb != blocks)
    return InvalidArgument(Text("x_scales has kb=", kb, ", expected 1, or ", blocks, " blocks of ",
                                matmul::kScaleBlock, " for k=", x.dim(-1)));
  if (w_scales.rank < 2) return {};
  if (w_scales.dim(0) != row_blocks || w_scales.dim(1) != blocks)
    return InvalidArgument(Text("w_scales has [nb wb]=[", w_scales.dim(0), " ", w_scales.dim(1),
                                "], expected [", row_blocks, " ", blocks, "], blocks of ",
                                matmul::kScaleBlock, " for n=", w.dim(0), ", k=", w.dim(1)));
  return {};
}

matmul::ScaledParams ScaledMatmul::ToParams() const {
  matmul::ScaledParams params{.dtype = x.dtype,
                              .out_dtype = out.dtype,
                              .x = x.data,
                              .w = w.data,
                              .m = x.rows(),
                              .n = w.dim(0),
                              .k = w.dim(1),
                              .out = out.data};
  params.x_scales.data = x_scales.as<const float>();
  const int64_t kb = x_scales.dim(-1);
  if (x_scales.rank > 1 || x.rank == 1) params.x_scales.row = kb;
  if (kb != 1) params.x_scales.block = 1;  // of no block where k is 0
  params.w_scales.data = w_scales.as<const float>();
  if (w_scales.rank == 2)
    params.w_scales = {params.w_scales.data, w_scales.dim(1), 1, matmul::kScaleBlock};
  else if (w_scales.dim(0) > 1)
    params.w_scales.row = 1;
  if (bias) params.bias = bias->data, params.bias_dtype = bias->dtype;
  return params;
}

}  // namespace intarsia
