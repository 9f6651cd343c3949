#include "src/cache/blocks_cpu.h"
#include "src/core/cpu/simd.h"
#include "src/ops/copy_blocks/copy_blocks.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const CopyBlocks& op, const CpuContext& context) {
  return CopyBlocksOnCpu(op.Copies(), context);
}

}  // namespace intarsia
