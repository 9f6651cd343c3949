#include "src/core/dispatch.h"
#include "src/matmul/cuda/counts.h"
#include "src/matmul/cuda/quantized_plan.h"
#include "src/matmul/cuda/sm80/quantized.h"
#include "src/matmul/cuda/sm90/grouped_codes.h"
#include "src/matmul/cuda/sm90/grouped_warpgroups.h"
#include "src/matmul/cuda/sm90/resident.h"
#include "src/matmul/cuda/sm90/warpgroups.h"

namespace intarsia::matmul {

namespace {

const cuda::ChoiceReport kReport(&ReportQuantizedChoices);

Status FitCountsOf(int64_t m, const QuantizedParams& p) {
  return FitCounts({{"m", m}, {"k", p.k}, {"n", p.n()}, {"group", p.group}});
}

// Whether a plan's kernel makes gates and ups results.
bool Gates(const QuantizedParams& p, const QuantizedPlan& plan) {
  return (plan.kernel == QuantizedKernelKind::kWarpgroups ||
          plan.kernel == QuantizedKernelKind::kRow) &&
         p.out_dtype == p.dtype && p.tiles % 2 == 0 && !p.residual;
}

// The same for groups: kAny cannot put tiles of gates and of ups side by side.
bool Gates(const QuantizedGroupsParams& p, const QuantizedPlan& plan) {
  return p.each.out_dtype == p.each.dtype && p.each.tiles % 2 == 0 &&
         (p.each.gating.in_turn || plan.kernel != QuantizedKernelKind::kAny);
}

// Whether it norms rows of x.
bool Norms(const QuantizedParams& p, const QuantizedPlan& plan) {
  return p.m == 1 && plan.kernel == QuantizedKernelKind::kRow;
}

Status Launch(const QuantizedParams& params, const QuantizedPlan& plan,
              const CudaContext& context) {
  if (plan.kernel == QuantizedKernelKind::kAny)
    return DispatchDType<kF32, kF16, kBF16>("x", params.dtype, [&]<DType kType>() {
      return LaunchQuantizedOf<kType>(params, plan, context);
    });
  return DispatchDType<kF16, kBF16>("x", params.dtype, [&]<DType kType>() {
    if (plan.kernel == QuantizedKernelKind::kRow) return LaunchRowOf<kType>(params, plan, context);
    if (plan.kernel == QuantizedKernelKind::kWarpgroups)
      return sm90::LaunchWarpgroupsOf<kType>(params, plan, context);
    if (plan.kernel == QuantizedKernelKind::kResident ||
        plan.kernel == QuantizedKernelKind::kWideResident)
      return sm90::LaunchResidentOf<kType>(params, plan, context);
    return LaunchStreamOf<kType>(params, plan, context);
  });
}

}  // namespace

Status Run(const QuantizedParams& params, const CudaContext& context) {
  INTARSIA_RETURN_IF_ERROR(FitCountsOf(params.m, params));
  if (params.m == 0 || params.tiles == 0) return {};
  const QuantizedPlan plan = PlanFor(params, *context.device);
  if (params.gating.is_there && !Gates(params, plan))
    return Internal("the layer's kernel takes no gating");
  if (params.norm.weight && !Norms(params, plan))
    return Internal("the layer's kernel norms no rows");
  for (int64_t first = 0; first < params.m; first += MostRowsOfPass(plan))
    INTARSIA_RETURN_IF_ERROR(Launch(PassFrom(params, plan, first), plan, context));
  return {};
}

bool CanGate(const QuantizedParams& params, const CudaContext& context) {
  return params.m > 0 && params.tiles > 0 && Gates(params, PlanFor(params, *context.device));
}

bool CanNorm(const QuantizedParams& params, const CudaContext& context) {
  return params.m > 0 && params.tiles > 0 && Norms(params, PlanFor(params, *context.device));
}

bool CanGate(const QuantizedGroupsParams& params, const CudaContext& context) {
  return Gates(params, PlanForGroups(params, *context.device));
}

Status Run(const QuantizedGroupsParams& params, const CudaContext& context) {
  INTARSIA_RETURN_IF_ERROR(FitCountsOf(params.groups.m, params.each));
  INTARSIA_RETURN_IF_ERROR(FitCounts(
      {{"count of groups", params.groups.count}, {"count of all groups", params.groups.all}}));
  if (params.groups.m == 0 || params.each.tiles == 0) return {};
  const QuantizedPlan plan = PlanForGroups(params, *context.device);
  if (params.each.gating.is_there && !Gates(params, plan))
    return Internal("the kernel of the groups takes no gating");
  const bool warpgroups = plan.kernel == QuantizedKernelKind::kGroupsWarpgroups;
  if (warpgroups || plan.kernel == QuantizedKernelKind::kGroupsHopper)
    return DispatchDType<kF16, kBF16>("x", params.each.dtype, [&]<DType kType>() {
      return warpgroups ? sm90::LaunchGroupedWarpgroupsOf<kType>(params, plan, context)
                        : sm90::LaunchGroupsHopperOf<kType>(params, plan, context);
    });
  return DispatchDType<kF32, kF16, kBF16>("x", params.each.dtype, [&]<DType kType>() {
    return LaunchGroupedCodesOf<kType>(params, plan, context);
  });
}

}  // namespace intarsia::matmul
