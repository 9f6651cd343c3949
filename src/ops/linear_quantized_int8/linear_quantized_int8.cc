#include "src/ops/linear_quantized_int8/linear_quantized_int8.h"

namespace intarsia {

LinearQuantized LinearQuantizedInt8::Plain() const {
  LinearQuantized plain;
  plain.x = x;
  plain.packed = packed;
  plain.scales = scales;
  plain.zeros = zeros;
  plain.outer_scales = outer_scales;
  plain.outer_zeros = outer_zeros;
  plain.bias = bias;
  plain.format = format;
  plain.group = group;
  plain.zeros_are = zeros_are;
  plain.out_dtype = out_dtype;
  plain.out = out;
  return plain;
}

}  // namespace intarsia
