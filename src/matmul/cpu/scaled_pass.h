// The products of scaled.h on the CPU: scaled.cc takes some rows of x at a time, scaled_cpu.cc
// multiplies them and is compiled once for each instruction set.
#pragma once
#include <cstdint>

#include "src/matmul/cpu/product.h"
#include "src/matmul/scaled.h"

namespace intarsia::matmul {

// Lanes of sums that panels of a block of rows have at most: narrow ones fill a register, too.
inline constexpr int64_t kMostLanes = kBlockRows + 3 * kAlignFloats;

// Rows of x that are packed at the same time. A block of kBlockRows has panels of its numbers
// (panels.h), and of each block of columns, if those have scales, the scale of each lane of its
// sums.
struct ScaledPass {
  const ScaledParams& params;
  int64_t first, rows;
  float *packed, *scales;  // aligned to 64 bytes

  // Columns that are packed: zeros fill the last block.
  static int64_t Columns(const ScaledParams& params) { return params.blocks() * kScaleBlock; }
  static int64_t Scales(const ScaledParams& params) {
    return params.has_blocks() ? params.blocks() : 1;
  }
  // Floats of a block of at most kBlockRows rows. A panel may be a third wider than the rows in it;
  // a float has room for every kind of unit.
  static int64_t PackedFloats(const ScaledParams& params, int64_t rows) {
    return (rows + rows / 3) * Columns(params);
  }
  static int64_t ScaleFloats(const ScaledParams& params) { return Scales(params) * kMostLanes; }
};

}  // namespace intarsia::matmul
