#include "src/ops/copy_blocks/copy_blocks.h"

namespace intarsia {

Status CopyBlocks::Run(const CudaContext& context) const {
  return cache::Launch(context, Copies());
}

}  // namespace intarsia
