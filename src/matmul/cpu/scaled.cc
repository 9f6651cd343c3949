#include <algorithm>

#include "src/core/cpu/aligned_floats.h"
#include "src/core/cpu/isa.h"
#include "src/matmul/cpu/scaled_pass.h"

namespace intarsia::matmul {
namespace {

constexpr int64_t kMostRows = 4 * kBlockRows;  // of x, at a time

}  // namespace

Status Run(const ScaledParams& params, const CpuContext& context) {
  if (params.m == 0 || params.n == 0) return {};
  const int64_t rows = std::min(params.m, kMostRows), blocks = CeilDiv(rows, kBlockRows);
  const int64_t whole = (blocks - 1) * kBlockRows;  // rows of all blocks but the last
  const AlignedFloats packed =
      MakeAligned((blocks - 1) * ScaledPass::PackedFloats(params, kBlockRows) +
                  ScaledPass::PackedFloats(params, rows - whole));
  const AlignedFloats scales = MakeAligned(blocks * ScaledPass::ScaleFloats(params));
  for (int64_t first = 0; first < params.m; first += rows)
    INTARSIA_RETURN_IF_ERROR(RunOnCpu(
        ScaledPass{params, first, std::min(rows, params.m - first), packed.get(), scales.get()},
        context));
  return {};
}

}  // namespace intarsia::matmul
