#include "src/norm/quant_row_cpu.h"
#include "src/ops/rms_norm_per_block_quant/rms_norm_per_block_quant.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const RmsNormPerBlockQuant& op, const CpuContext& context) {
  const int64_t n = op.x.dim(-1), rows = Rows(op.x, n);
  const Blocks blocks{n / op.group_size, op.group_size};
  return op.q.dtype == kI8 ? RunQuantizedRms<I8>(op, rows, blocks, context)
                           : RunQuantizedRms<F8E4M3>(op, rows, blocks, context);
}

}  // namespace intarsia
