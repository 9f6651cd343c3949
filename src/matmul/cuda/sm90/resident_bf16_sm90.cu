#include "src/matmul/cuda/sm90/resident_kernel.cuh"

namespace intarsia::matmul::sm90 {

template Status LaunchResidentOf<DType::kBF16>(const QuantizedParams&, const QuantizedPlan&,
                                               const CudaContext&);

}  // namespace intarsia::matmul::sm90
