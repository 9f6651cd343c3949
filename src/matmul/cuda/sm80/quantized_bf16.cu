#include "src/matmul/cuda/sm80/quantized_launch.cuh"

namespace intarsia::matmul {

template Status LaunchQuantizedOf<DType::kBF16>(const QuantizedParams&, const QuantizedPlan&,
                                                const CudaContext&);

}  // namespace intarsia::matmul
