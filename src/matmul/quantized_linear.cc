#include "src/matmul/quantized_linear.h"

namespace intarsia {

Status QuantizedLinear::Check() const { return matmul::WeightOf(*this).Check(); }

matmul::QuantizedParams QuantizedLinear::ToParams() const {
  matmul::QuantizedParams params = matmul::WeightOf(*this).ToParams(x.dtype);
  params.out_dtype = out.dtype;
  params.x = x.data;
  params.m = x.rows();
  params.bias = bias ? bias->data : nullptr;
  params.out = out.data;
  return params;
}

}  // namespace intarsia
