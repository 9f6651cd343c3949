#include "src/ops/grouped_matmul_quantized/grouped_matmul_quantized.h"

namespace intarsia {

matmul::WeightOperands GroupedMatmulQuantized::Weight() const {
  return {.packed_name = "packed",
          .prefix = "",
          .letter = "k",
          .packed = packed,
          .scales = scales,
          .zeros = zeros,
          .outer_scales = outer_scales,
          .outer_zeros = outer_zeros,
          .columns = {"k", x.dim(1)},
          .group = {"group", group},
          .format = format,
          .zeros_are = zeros_are};
}

Status GroupedMatmulQuantized::Check() const { return Weight().Check(); }

matmul::QuantizedGroupsParams GroupedMatmulQuantized::ToParams() const {
  matmul::QuantizedParams each = Weight().ToParams(x.dtype);
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
