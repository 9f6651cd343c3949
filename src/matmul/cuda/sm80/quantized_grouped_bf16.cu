#include "src/matmul/cuda/sm80/quantized_grouped.cuh"

namespace intarsia::matmul {

template Status LaunchGroupedCodesOf<DType::kBF16>(const QuantizedGroupsParams&,
                                                   const QuantizedPlan&, const CudaContext&);

}  // namespace intarsia::matmul
