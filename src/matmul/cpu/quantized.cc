#include "src/matmul/quantized.h"

#include <algorithm>
#include <cstring>

#include "src/core/cpu/aligned_floats.h"
#include "src/core/cpu/isa.h"

namespace intarsia::matmul {
namespace {

constexpr int64_t kMostRows = 512;  // of x, at a time

}  // namespace

Status Run(const QuantizedParams& params, const CpuContext& context) {
  if (params.m == 0 || params.tiles == 0) return {};
  const int64_t rows = std::min(params.m, kMostRows);
  const int64_t row_floats = params.blocks() * kBlockColumns;
  const AlignedFloats memory = MakeAligned(rows * (row_floats + params.groups));
  for (int64_t first = 0; first < params.m; first += rows) {
    const QuantizedPass pass{params, first, std::min(rows, params.m - first), memory.get(),
                             params.zeros.data ? memory.get() + rows * row_floats : nullptr};
    INTARSIA_RETURN_IF_ERROR(RunOnCpu(pass, context));
  }
  return {};
}

}  // namespace intarsia::matmul
