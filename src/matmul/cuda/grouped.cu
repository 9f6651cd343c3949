#include "src/core/cuda/launch.h"
#include "src/core/dispatch.h"
#include "src/matmul/cuda/choose.h"
#include "src/matmul/cuda/sm80/grouped.h"

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

}  // namespace

Status Run(const GroupedParams& params, const CudaContext& context) {
  INTARSIA_RETURN_IF_ERROR(FitCounts(params.m(), params.k, params.n, params.groups));
  const GroupedCandidate* const choice = Choose(params, *context.device);
  if (!choice)
    return Unimplemented(Text("no kernel is built for ", Name(params.dtype), " on GPU ",
                              context.device->index, ", which has ",
                              context.device->shared_bytes_per_block,
                              " bytes of shared memory per block"));
  return DispatchDType<kF32, kF16, kBF16>("x", params.dtype, [&]<DType kType>() {
    return LaunchGroupedOf<kType>(params, context, *choice);
  });
}

Status Run(const GroupedGradientParams& params, const CudaContext& context) {
  INTARSIA_RETURN_IF_ERROR(FitCounts(params.groups.m, params.k, params.n, params.groups));
  return DispatchDType<kF32, kF16, kBF16>("x", params.dtype, [&]<DType kType>() {
    return LaunchGroupedGradientOf<kType>(params, context);
  });
}

}  // namespace intarsia::matmul
