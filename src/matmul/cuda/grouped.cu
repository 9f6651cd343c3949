#include "src/core/cuda/launch.h"
#include "src/core/dispatch.h"
#include "src/matmul/cuda/counts.h"
#include "src/matmul/cuda/launch.h"
#include "src/matmul/cuda/sm80/grouped.h"
#include "src/matmul/cuda/sm90/grouped.h"

namespace intarsia::matmul {
namespace {

const cuda::ChoiceReport kReport(&ReportGroupedChoices);

Status FitCountsOf(int64_t m, int64_t k, int64_t n, const GroupSizes& groups) {
  return FitCounts({{"m", m},
                    {"k", k},
                    {"n", n},
                    {"count of groups", groups.count},
                    {"count of all groups", groups.all}});
}

Status NoKernel(DType dtype, const cuda::Device& device) {
  return Unimplemented(Text("no kernel is built for ", Name(dtype), " on GPU ", device.index,
                            ", which has ", device.shared_bytes_per_block,
                            " bytes of shared memory per block"));
}

}  // namespace

Status Launch(const GroupedParams& params, const CudaContext& context,
              const GroupedCandidate& candidate) {
  INTARSIA_RETURN_IF_ERROR(FitCountsOf(params.m(), params.k, params.n, params.groups));
  if (candidate.arch == cuda::kHopper)
    return DispatchDType<kF16, kBF16>("x", params.dtype, [&]<DType kType>() {
      return sm90::LaunchGroupedOf<kType>(params, context, candidate.rows);
    });
  return DispatchDType<kF32, kF16, kBF16>("x", params.dtype, [&]<DType kType>() {
    return LaunchGroupedOf<kType>(params, context, candidate);
  });
}

Status Launch(const GroupedGradientParams& params, const CudaContext& context,
              const GradientCandidate& candidate) {
  INTARSIA_RETURN_IF_ERROR(FitCountsOf(params.groups.m, params.k, params.n, params.groups));
  if (candidate.arch == cuda::kHopper)
    return DispatchDType<kF16, kBF16>("x", params.dtype, [&]<DType kType>() {
      return sm90::LaunchGroupedGradientOf<kType>(params, context);
    });
  return DispatchDType<kF32, kF16, kBF16>("x", params.dtype, [&]<DType kType>() {
    return LaunchGroupedGradientOf<kType>(params, context);
  });
}

Status Run(const GroupedParams& params, const CudaContext& context) {
  const GroupedCandidate* const choice = Choose(params, *context.device);
  return choice ? Launch(params, context, *choice) : NoKernel(params.dtype, *context.device);
}

Status Run(const GroupedGradientParams& params, const CudaContext& context) {
  const GradientCandidate* const choice = Choose(params, *context.device);
  return choice ? Launch(params, context, *choice) : NoKernel(params.dtype, *context.device);
}

}  // namespace intarsia::matmul
