#include "src/matmul/cuda/sm90/grouped.cuh"
#include "src/matmul/cuda/sm90/weight_gradient.cuh"

namespace intarsia::matmul::sm90 {
template Status LaunchGroupedOf<DType::kBF16>(const GroupedParams&, const CudaContext&, int);
template Status LaunchGroupedGradientOf<DType::kBF16>(const GroupedGradientParams&,
                                                      const CudaContext&);
}  // namespace intarsia::matmul::sm90
