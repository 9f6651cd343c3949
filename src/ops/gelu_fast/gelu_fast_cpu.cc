#include "src/activation/elementwise_cpu.h"
#include "src/ops/gelu_fast/gelu_fast.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const GeluFast& op, const CpuContext& context) {
  return op.round_steps ? RunElementwise<GeluFastSteps>(op, context)
                        : RunElementwise<GeluTanh>(op, context);
}

}  // namespace intarsia
