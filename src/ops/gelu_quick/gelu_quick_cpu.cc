#include "src/activation/elementwise_cpu.h"
#include "src/ops/gelu_quick/gelu_quick.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const GeluQuick& op, const CpuContext& context) {
  return RunElementwise<Logistic>(op, context);
}

}  // namespace intarsia
