#include "src/activation/gated_cpu.h"
#include "src/ops/mul_and_silu/mul_and_silu.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const MulAndSilu& op, const CpuContext& context) {
  return RunGated<Silu>(op, context, nullptr, {}, GatedOrder::kUpFirst);
}

}  // namespace intarsia
