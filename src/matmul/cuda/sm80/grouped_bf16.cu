#include "src/matmul/cuda/sm80/grouped.cuh"

namespace intarsia::matmul {

template Status LaunchGroupedOf<DType::kBF16>(const GroupedParams&, const CudaContext&,
                                              const GroupedCandidate&);
template Status LaunchGroupedGradientOf<DType::kBF16>(const GroupedGradientParams&,
                                                      const CudaContext&);

}  // namespace intarsia::matmul
