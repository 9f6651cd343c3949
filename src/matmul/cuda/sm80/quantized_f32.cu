#include "src/matmul/cuda/sm80/quantized_launch.cuh"

namespace intarsia::matmul {

template Status LaunchQuantizedOf<DType::kF32>(const QuantizedParams&, const QuantizedPlan&,
                                               const CudaContext&);

}  // namespace intarsia::matmul
