// The work of one linear layer on the CPU: linear.cc plans it for linear_cpu.cc, which does it and
// is compiled once for each instruction set.
//
// Rows of x are packed into panels. A panel of `width` rows is what a register (two, for the
// widest) multiplies at once: f32 [k / depth, width, depth], where depth is how many neighbours
// along k a register has room for beside so many rows. So a few rows fill registers, too, each
// weight is loaded once for the whole panel, and no sum goes across lanes before the end.
#pragma once
#include <cstdint>

#include "src/core/cpu/aligned_floats.h"
#include "src/ops/linear/linear.h"

namespace intarsia {

struct LinearWork {
  const Linear& op;
  int64_t m, n, k;
  // f32 [packed_rows, padded_k], aligned to 64 bytes: panel after panel, zeros behind rows and
  // columns.
  float* packed = nullptr;
  int64_t packed_rows = 0, padded_k = 0;
};

using LinearRun = Status (*)(const LinearWork& work, const CpuContext& context);

// Plans the work of a call, finds memory for it and runs it; no work, no run.
Status RunPlanned(const Linear& op, const CpuContext& context, LinearRun run);

// How many rows of x are packed at a time: all, or as many as this memory holds.
inline constexpr int64_t kMostPackedFloats = int64_t{1} << 22;
// Rows that share a tile's weights. A multiple of every panel's width.
inline constexpr int64_t kLinearBlockRows = 128;

}  // namespace intarsia
