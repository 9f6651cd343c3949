#include "src/ops/fused_experts/steps_cpu.h"
#include "src/ops/fused_experts_quantized/fused_experts_quantized.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const FusedExpertsQuantized& op, const CpuContext& context) {
  return RunExperts(
      op.Plain(), context,
      [&](const ExpertsPass& pass) { return matmul::Run(op.FirstProduct(pass), context); },
      [&](const ExpertsPass& pass) { return matmul::Run(op.SecondProduct(pass), context); });
}

}  // namespace intarsia
