#include "src/matmul/quantized_linear.h"

namespace intarsia {
namespace {

matmul::Factors ToFactors(const TensorView& inner, const Optional& outer) {
  matmul::Factors factors{.data = inner.data, .dtype = inner.dtype};
  if (!outer) return factors;
  factors.outer = outer->data;
  factors.outer_dtype = outer->dtype;
  factors.outers = outer->rank == 1 ? 0 : outer->dim(1);
  return factors;
}

}  // namespace

Status QuantizedLinear::Check() const {
  const int64_t groups = scales.dim(1);
  INTARSIA_RETURN_IF_ERROR(matmul::CheckColumns({"packed", "kb", packed.dim(1)},
                                                {"scales", "kg", groups}, {"k", x.dim(-1)},
                                                {"group", group}));
  if (const Optional& outer = outer_scales ? outer_scales : outer_zeros; outer && outer->rank > 1) {
    if (const int64_t o = outer->dim(1); o == 0 || groups % o != 0)
      return InvalidArgument(Text(outer_scales ? "outer_scales" : "outer_zeros", " has ko=", o,
                                  ", expected a divisor of the kg=", groups, " groups"));
  }
  if (outer_zeros && !zeros) return InvalidArgument("outer_zeros is given but zeros is not");
  if (outer_zeros && zeros_are == "points")
    return InvalidArgument("outer_zeros is given, expected none where zeros are points");
  return {};
}

matmul::QuantizedParams QuantizedLinear::ToParams() const {
  const int64_t k = x.dim(-1);
  matmul::QuantizedParams params{.dtype = x.dtype,
                                 .out_dtype = out.dtype,
                                 .format = *matmul::FormatOf(format),
                                 .x = x.data,
                                 .m = x.rows(),
                                 .k = k,
                                 .tiles = packed.dim(0),
                                 .packed = packed.as<const uint8_t>(),
                                 .groups = scales.dim(1),
                                 .scales = ToFactors(scales, outer_scales),
                                 .zeros = {},
                                 .points = zeros_are == "points",
                                 .bias = bias ? bias->data : nullptr,
                                 .out = out.data};
  params.group = group == 0 ? params.blocks() * matmul::kBlockColumns : group;
  if (zeros) params.zeros = ToFactors(*zeros, outer_zeros);
  return params;
}

}  // namespace intarsia
