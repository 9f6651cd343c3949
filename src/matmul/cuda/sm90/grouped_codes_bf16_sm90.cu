#include "src/matmul/cuda/sm90/grouped_codes_kernel.cuh"

namespace intarsia::matmul::sm90 {

template Status LaunchGroupsHopperOf<DType::kBF16>(const QuantizedGroupsParams&,
                                                   const QuantizedPlan&, const CudaContext&);

}  // namespace intarsia::matmul::sm90
