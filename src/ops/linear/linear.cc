#include <algorithm>
#include <bit>

#include "src/core/round.h"
#include "src/ops/linear/linear_cpu.h"

namespace intarsia {

Status RunPlanned(const Linear& op, const CpuContext& context, LinearRun run) {
  LinearWork work{.op = op, .m = 1, .n = op.w.dim(0), .k = op.w.dim(1)};
  for (int axis = 0; axis + 1 < op.x.rank; ++axis) work.m *= op.x.dim(axis);
  if (work.m == 0 || work.n == 0) return {};
  work.padded_k = RoundUp(work.k, kAlignFloats);
  const int64_t most = kMostPackedFloats / std::max<int64_t>(work.padded_k, 1);
  work.packed_rows = std::min(
      RoundUp(std::max<int64_t>(most, 1), kLinearBlockRows),
      work.m < 2 * kAlignFloats ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(work.m)))
                                : RoundUp(work.m, 2 * kAlignFloats));
  const AlignedFloats packed = MakeAligned(work.packed_rows * work.padded_k);
  work.packed = packed.get();
  return run(work, context);
}

}  // namespace intarsia
