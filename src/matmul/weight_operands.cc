#include "src/matmul/weight_operands.h"

#include <algorithm>

namespace intarsia::matmul {
namespace {

Factors ToFactors(const TensorView& inner, const Optional& outer) {
  Factors factors{.data = inner.data, .dtype = inner.dtype};
  if (!outer) return factors;
  factors.outer = outer->data;
  factors.outer_dtype = outer->dtype;
  factors.outers = outer->rank == 1 ? 0 : outer->dim(-2);
  return factors;
}

}  // namespace

Status WeightOperands::Check() const {
  const int64_t k = columns.size, blocks = packed.dim(-4);
  if (const int64_t expected = CeilDiv(k, kBlockColumns); blocks != expected)
    return InvalidArgument(Text(packed_name, " has ", letter, "b=", blocks,
                                " blocks of 32 columns, expected ", expected, " for ", columns.name,
                                "=", k));
  if (group.size < 0 || (group.size != kStepColumns && group.size % kBlockColumns != 0))
    return InvalidArgument(
        Text(group.name, " is ", group.size, ", expected 0, 16 or a multiple of 32"));
  const int64_t parts = group.size == 0 ? 1 : CeilDiv(k, std::min(group.size, k + kBlockColumns));
  if (groups() != parts)
    return InvalidArgument(Text(prefix, "scales has ", letter, "g=", groups(), " groups, expected ",
                                parts, " for ", columns.name, "=", k, " and ", group.name, "=",
                                group.size));
  INTARSIA_RETURN_IF_ERROR(CheckOuter("outer_scales", outer_scales));
  INTARSIA_RETURN_IF_ERROR(CheckOuter("outer_zeros", outer_zeros));
  if (outer_zeros && !zeros)
    return InvalidArgument(Text(prefix, "outer_zeros is given but ", prefix, "zeros is not"));
  if (outer_zeros && zeros_are == "points")
    return InvalidArgument(
        Text(prefix, "outer_zeros is given, expected none where zeros are points"));
  return {};
}

Status WeightOperands::CheckOuter(std::string_view name, const Optional& outer) const {
  if (!outer || outer->rank == 1) return {};
  const int64_t o = outer->dim(-2);
  if (groups() == 0 || (o != 0 && groups() % o == 0)) return {};
  return InvalidArgument(Text(prefix, name, " has ", letter, "o=", o,
                              ", expected a divisor of the ", letter, "g=", groups(), " groups"));
}

QuantizedParams WeightOperands::ToParams(DType dtype) const {
  QuantizedParams params{.dtype = dtype,
                         .out_dtype = dtype,
                         .format = *FormatOf(format),
                         .k = columns.size,
                         .tiles = packed.dim(-5),
                         .packed = packed.as<const uint8_t>(),
                         .groups = groups(),
                         .scales = ToFactors(scales, outer_scales),
                         .zeros = {},
                         .points = zeros_are == "points"};
  params.group = group.size == 0 ? params.blocks() * kBlockColumns : group.size;
  if (zeros) params.zeros = ToFactors(*zeros, outer_zeros);
  return params;
}

}  // namespace intarsia::matmul
