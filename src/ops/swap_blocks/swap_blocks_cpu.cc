#include "src/cache/blocks_cpu.h"
#include "src/core/cpu/simd.h"
#include "src/ops/swap_blocks/swap_blocks.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const SwapBlocks& op, const CpuContext& context) {
  return CopyBlocksOnCpu(op.Copies(), context);
}

}  // namespace intarsia
