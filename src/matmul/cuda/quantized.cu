#include "src/core/dispatch.h"
#include "src/matmul/cuda/quantized_plan.h"
#include "src/matmul/cuda/sm80/quantized.h"

namespace intarsia::matmul {

Status Run(const QuantizedParams& params, const CudaContext& context) {
  // Kernels count rows, columns and groups with 32 bits.
  constexpr int64_t kLimit = int64_t{1} << 30;
  if (params.m >= kLimit || params.k >= kLimit || params.n() >= kLimit)
    return Unimplemented(Text("m=", params.m, ", k=", params.k, ", n=", params.n(),
                              ": on GPUs each is built below ", kLimit));
  if (params.m == 0 || params.tiles == 0) return {};
  const QuantizedPlan plan = PlanFor(params, *context.device);
  if (plan.kernel != QuantizedKernelKind::kAny)
    return DispatchDType<kF16, kBF16>("x", params.dtype, [&]<DType kType>() {
      return LaunchStreamOf<kType>(params, plan, context);
    });
  return DispatchDType<kF32, kF16, kBF16>("x", params.dtype, [&]<DType kType>() {
    return LaunchQuantizedOf<kType>(params, plan, context);
  });
}

}  // namespace intarsia::matmul
