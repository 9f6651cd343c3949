#include "src/core/cuda/launch.h"
#include "src/core/dispatch.h"
#include "src/matmul/cuda/launch.h"
#include "src/matmul/cuda/sm80/grouped.h"
#include "src/matmul/cuda/sm90/grouped.h"

namespace intarsia::matmul {
namespace {

const cuda::ChoiceReport kReport(&ReportGroupedChoices);

// Kernels count rows, columns and groups with 32 bits, and the tiles of a group, too.
Status FitCounts(int64_t m, int64_t k, int64_t n, const GroupSizes& groups) {
  constexpr int64_t kLimit = int64_t{1} << 30;
  if (m < kLimit && k < kLimit && n < kLimit && groups.all < kLimit && groups.count < kLimit)
    return {};
  return Unimplemented(Text("m=", m, ", k=", k, ", n=", n, ", ", groups.all,
                            " groups: on GPUs each is built below ", kLimit));
}

Status NoKernel(DType dtype, const cuda::Device& device) {
  return Unimplemented(Text("no kernel is built for ", Name(dtype), " on GPU ", device.index,
                            ", which has ", device.shared_bytes_per_block,
                            " bytes of shared memory per block"));
}

}  // namespace

Status Launch(const GroupedParams& params, const CudaContext& context,
              const GroupedCandidate& candidate) {
  INTARSIA_RETURN_IF_ERROR(FitCounts(params.m(), params.k, params.n, params.groups));
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
  INTARSIA_RETURN_IF_ERROR(FitCounts(params.groups.m, params.k, params.n, params.groups));
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
