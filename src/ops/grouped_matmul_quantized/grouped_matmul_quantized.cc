#include "src/ops/grouped_matmul_quantized/grouped_matmul_quantized.h"

namespace intarsia {

Status GroupedMatmulQuantized::Check() const {
  return matmul::CheckColumns({"packed", "kb", packed.dim(2)}, {"scales", "kg", scales.dim(2)},
                              {"k", x.dim(1)}, {"group", group});
}

matmul::QuantizedGroupsParams GroupedMatmulQuantized::ToParams() const {
  const int64_t k = x.dim(1), blocks = CeilDiv(k, matmul::kBlockColumns);
  matmul::QuantizedParams each{.dtype = x.dtype,
                               .out_dtype = out.dtype,
                               .format = *matmul::FormatOf(format),
                               .x = x.data,
                               .rows = ToIndexVector(rows),
                               .k = k,
                               .tiles = packed.dim(1),
                               .packed = packed.as<const uint8_t>(),
                               .group = group == 0 ? blocks * matmul::kBlockColumns : group,
                               .groups = scales.dim(2),
                               .scales = {.data = scales.data, .dtype = scales.dtype},
                               .zeros = {},
                               .points = zeros_are == "points",
                               .bias = bias ? bias->data : nullptr,
                               .out = out.data};
  if (zeros) each.zeros = {.data = zeros->data, .dtype = zeros->dtype};
  return {.each = each,
          .x_rows = x.dim(0),
          .groups = {.sizes = ToIndexVector(group_sizes),
                     .all = group_sizes.dim(0),
                     .count = packed.dim(0),
                     .m = out.dim(0),
                     .offset = ToIndexVector(group_offset)}};
}

}  // namespace intarsia
