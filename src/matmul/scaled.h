// A product of codes of 8 bits with codes, each with scales:
//   out[i, j] = sum_b sx[i, b] sw[j, b] p[i, j, b] + bias[j],   rounded once,
//   p[i, j, b] = sum of x[i, l] w[j, l] over l in block b, 128 columns of x and w,
// where b matters to sums of blocks alone: scales of a row, or of all, are the same in each block.
//   int8: p is exact, a sum of integers.
//   e4m3: products are exact, sums in f32. Hopper's tensor cores keep some 14 bits of a sum; they
//   add up one block, and f32 arithmetic adds up blocks.
// Blocks are added in an order that the shape decides. On GPUs int8's are added in f32, too, but in
// Hopper's kernel without scales of blocks.
#pragma once
#include <cstdint>

#include "src/core/context.h"
#include "src/core/dtype.h"
#include "src/core/index_vector.h"  // INTARSIA_HOST_DEVICE
#include "src/core/round.h"
#include "src/core/status.h"

namespace intarsia::matmul {

inline constexpr int kScaleBlock = 128;  // columns of a block; and rows of w that share its scale

// Scales of a matrix's rows and blocks.
struct BlockScales {
  const float* data = nullptr;
  int64_t row = 0, block = 0;  // from one scale to the next; 0: all have the same
  int64_t rows = 1;            // neighbors that share a scale

  INTARSIA_HOST_DEVICE float At(int64_t i, int64_t b) const {
    return data[i / rows * row + b * block];
  }
};

struct ScaledParams {
  DType dtype = DType::kF8E4M3, out_dtype = DType::kBF16;  // e4m3 or i8; f32, f16 or bf16
  const void *x = nullptr, *w = nullptr;                   // [m, k], [n, k]
  int64_t m = 0, n = 0, k = 0;
  BlockScales x_scales = {}, w_scales = {};
  DType bias_dtype = DType::kF32;
  const void* bias = nullptr;  // absent, or [n]
  void* out = nullptr;         // [m, n]

  constexpr int64_t blocks() const { return CeilDiv<int64_t>(k, kScaleBlock); }
  bool has_blocks() const { return x_scales.block != 0 || w_scales.block != 0; }
};

Status Run(const ScaledParams& params, const CpuContext& context);
Status Run(const ScaledParams& params, const CudaContext& context);

}  // namespace intarsia::matmul
