#include "src/core/dispatch.h"
#include "src/matmul/cuda/counts.h"
#include "src/matmul/cuda/scaled_choice.h"
#include "src/matmul/cuda/sm80/scaled.h"
#include "src/matmul/cuda/sm90/scaled.h"

namespace intarsia::matmul {
namespace {

const cuda::ChoiceReport kReport(&ReportScaledChoices);

}  // namespace

Status Launch(const ScaledParams& p, const CudaContext& context, ScaledKernel kernel) {
  INTARSIA_RETURN_IF_ERROR(FitCounts({{"m", p.m}, {"k", p.k}, {"n", p.n}}));
  if (p.m == 0 || p.n == 0) return {};
  return DispatchDType<kF8E4M3, kI8>("x", p.dtype, [&]<DType kType>() {
    switch (kernel) {
      case ScaledKernel::kWarpgroups:
        return sm90::LaunchScaledOf<kType>(p, context);
      case ScaledKernel::kStream:
        return LaunchScaledStreamOf<kType>(p, context);
      case ScaledKernel::kTiles:
        break;
    }
    return LaunchScaledTilesOf<kType>(p, context);
  });
}

Status Run(const ScaledParams& params, const CudaContext& context) {
  return Launch(params, context, Choose(params, *context.device));
}

}  // namespace intarsia::matmul
