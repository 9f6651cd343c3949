#include "src/core/cpu/simd.h"
#include "src/matmul/cpu/product.h"
#include "src/ops/linear/linear.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const Linear& op, const CpuContext& context) {
  const int64_t n = op.w.dim(0), k = op.w.dim(1);
  const matmul::Group all{.rows = op.x.rows(), .count = k};
  return matmul::Run({.dtype = op.x.dtype,
                      .out_dtype = op.out.dtype,
                      .x = op.x.data,
                      .x_row = k,
                      .w = op.w.data,
                      .w_row = k,
                      .bias = op.bias ? op.bias->data : nullptr,
                      .out = op.out.data,
                      .n = n},
                     {&all, 1}, context);
}

}  // namespace intarsia
