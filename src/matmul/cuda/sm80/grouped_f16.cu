#include "src/matmul/cuda/sm80/grouped.cuh"

namespace intarsia::matmul {

template Status LaunchGroupedOf<DType::kF16>(const GroupedParams&, const CudaContext&,
                                             const GroupedCandidate&);
template Status LaunchGroupedGradientOf<DType::kF16>(const GroupedGradientParams&,
                                                     const CudaContext&);

}  // namespace intarsia::matmul
