#include "src/ops/grouped_matmul_quantized/grouped_matmul_quantized.h"

namespace intarsia {

Status GroupedMatmulQuantized::Check() const { return matmul::WeightOf(*this).Check(); }

matmul::QuantizedGroupsParams GroupedMatmulQuantized::ToParams() const {
  matmul::QuantizedParams each = matmul::WeightOf(*this).ToParams(x.dtype);
  each.out_dtype = out.dtype;
  each.x = x.data;
  each.rows = ToIndexVector(rows);
  each.bias = bias ? bias->data : nullptr;
  each.out = out.data;
  return {.each = each,
          .x_rows = x.dim(0),
          .groups = {.sizes = ToIndexVector(group_sizes),
                     .all = group_sizes.dim(0),
                     .count = packed.dim(0),
                     .m = out.dim(0),
                     .offset = ToIndexVector(group_offset)}};
}

}  // namespace intarsia
