#include "src/ops/grouped_matmul_weight_gradient/grouped_matmul_weight_gradient.h"

namespace intarsia {

matmul::GroupedGradientParams GroupedMatmulWeightGradient::ToParams() const {
  return {.dtype = x.dtype,
          .out_dtype = out.dtype,
          .x = x.data,
          .d_out = d_out.data,
          .out = out.data,
          .k = x.dim(1),
          .n = d_out.dim(1),
          .groups = {.sizes = ToIndexVector(group_sizes),
                     .all = group_sizes.dim(0),
                     .count = out.dim(0),
                     .m = x.dim(0),
                     .offset = ToIndexVector(group_offset)}};
}

}  // namespace intarsia
