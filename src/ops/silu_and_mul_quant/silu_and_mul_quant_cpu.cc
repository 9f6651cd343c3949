#include "src/activation/gated_cpu.h"
#include "src/core/cpu/simd_8bit.h"
#include "src/ops/silu_and_mul_quant/silu_and_mul_quant.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const SiluAndMulQuant& op, const CpuContext& context) {
  return RunGated<Silu, F8E4M3>(op, context, &op.scale);
}

}  // namespace intarsia
