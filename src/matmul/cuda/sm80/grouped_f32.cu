#include "src/matmul/cuda/sm80/grouped.cuh"

namespace intarsia::matmul {

template Status LaunchGroupedOf<DType::kF32>(const GroupedParams&, const CudaContext&,
                                             const GroupedCandidate&);
template Status LaunchGroupedGradientOf<DType::kF32>(const GroupedGradientParams&,
                                                     const CudaContext&);

}  // namespace intarsia::matmul
