#include "src/matmul/cuda/sm90/grouped.cuh"
#include "src/matmul/cuda/sm90/weight_gradient.cuh"

namespace intarsia::matmul::sm90 {
template Status LaunchGroupedOf<DType::kF16>(const GroupedParams&, const CudaContext&, int);
template Status LaunchGroupedGradientOf<DType::kF16>(const GroupedGradientParams&,
                                                     const CudaContext&);
}  // namespace intarsia::matmul::sm90
