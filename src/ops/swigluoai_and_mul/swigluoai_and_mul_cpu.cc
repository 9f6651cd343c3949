#include "src/activation/gated_cpu.h"
#include "src/ops/swigluoai_and_mul/swigluoai_and_mul.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const SwigluoaiAndMul& op, const CpuContext& context) {
  return RunGated<SwigluOai>(op, context, nullptr, {op.alpha, op.limit}, GatedOrder::kInTurn);
}

}  // namespace intarsia
