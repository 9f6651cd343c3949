#include "src/ops/fused_experts/steps_cpu.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const FusedExperts& op, const CpuContext& context) {
  return RunExperts(
      op, context,
      [&](const ExpertsPass& pass) { return matmul::Run(pass.FirstProduct(), context); },
      [&](const ExpertsPass& pass) { return matmul::Run(pass.SecondProduct(), context); });
}

}  // namespace intarsia
