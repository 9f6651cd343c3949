#include "src/activation/elementwise_cpu.h"
#include "src/ops/gelu_new/gelu_new.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const GeluNew& op, const CpuContext& context) {
  return op.round_steps ? RunElementwise<GeluNewSteps>(op, context)
                        : RunElementwise<GeluTanh>(op, context);
}

}  // namespace intarsia
