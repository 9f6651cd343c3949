// The operands and attributes by which ops take a matrix in codes, or several with an axis in
// front; quantized.h has the mathematics and how codes and factors lie.
#pragma once
#include <string_view>

#include "src/core/tensor_view.h"
#include "src/matmul/quantized.h"

namespace intarsia::matmul {

struct NamedSize {
  std::string_view name;
  int64_t size;
};

struct WeightOperands {
  std::string_view packed_name;  // of the codes' operand
  std::string_view prefix;       // of the names of the factors' operands
  std::string_view letter;       // b, g and o behind it: blocks, groups and outer factors of a row
  TensorView packed, scales;
  Optional zeros, outer_scales, outer_zeros;
  NamedSize columns, group;
  std::string_view format, zeros_are;

  // What a spec cannot say: whether the sizes go together.
  Status Check() const;
  // The matrix, or the first one of several, for x of type `dtype`; without rows and results.
  QuantizedParams ToParams(DType dtype) const;

 private:
  int64_t groups() const { return scales.dim(-2); }
  Status CheckOuter(std::string_view name, const Optional& outer) const;
};

// Those of an op of one matrix, or one stack of them, by the names that `linear_quantized` has.
template <class Op>
WeightOperands WeightOf(const Op& op) {
  return {.packed_name = "packed",
          .prefix = "",
          .letter = "k",
          .packed = op.packed,
          .scales = op.scales,
          .zeros = op.zeros,
          .outer_scales = op.outer_scales,
          .outer_zeros = op.outer_zeros,
          .columns = {"k", op.x.dim(-1)},
          .group = {"group", op.group},
          .format = op.format,
          .zeros_are = op.zeros_are};
}

}  // namespace intarsia::matmul
