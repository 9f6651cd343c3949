#include "src/matmul/quantized_linear.h"

namespace intarsia {

matmul::WeightOperands QuantizedLinear::Weight() const {
  return {.packed_name = "packed",
          .prefix = "",
          .letter = "k",
          .packed = packed,
          .scales = scales,
          .zeros = zeros,
          .outer_scales = outer_scales,
          .outer_zeros = outer_zeros,
          .columns = {"k", x.dim(-1)},
          .group = {"group", group},
          .format = format,
          .zeros_are = zeros_are};
}

Status QuantizedLinear::Check() const { return Weight().Check(); }

matmul::QuantizedParams QuantizedLinear::ToParams() const {
  matmul::QuantizedParams params = Weight().ToParams(x.dtype);
  params.out_dtype = out.dtype;
  params.x = x.data;
  params.m = x.rows();
  params.bias = bias ? bias->data : nullptr;
  params.out = out.data;
  return params;
}

}  // namespace intarsia
