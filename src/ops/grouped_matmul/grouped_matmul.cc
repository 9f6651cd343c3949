#include "src/ops/grouped_matmul/grouped_matmul.h"

namespace intarsia {

matmul::GroupedParams GroupedMatmul::ToParams() const {
  return {.dtype = x.dtype,
          .out_dtype = out.dtype,
          .x = x.data,
          .w = w.data,
          .bias = bias ? bias->data : nullptr,
          .out = out.data,
          .k = x.dim(1),
          .n = out.dim(1),
          .x_rows = x.dim(0),
          .transposed = transposed,
          .groups = {.sizes = ToIndexVector(group_sizes),
                     .all = group_sizes.dim(0),
                     .count = w.dim(0),
                     .m = out.dim(0),
                     .offset = ToIndexVector(group_offset)},
          .rows = ToIndexVector(rows)};
}

}  // namespace intarsia
