// A call of products with weights in codes, for plans.
#pragma once
#include "src/matmul/quantized.h"

namespace intarsia::matmul {

// int4 of bf16.
inline QuantizedParams ParamsOf(int64_t m, int64_t n, int64_t k, int64_t group) {
  QuantizedParams p;
  p.dtype = p.out_dtype = DType::kBF16;
  p.format = Format::kU4B8;
  p.m = m, p.k = k, p.tiles = n / kTileRows;
  p.group = group, p.groups = CeilDiv(k, group);
  alignas(16) static char memory[16];
  p.scales = {.data = memory, .dtype = DType::kF16};
  return p;
}

}  // namespace intarsia::matmul
