#include "src/matmul/cuda/sm80/quantized_stream_kernel.cuh"

namespace intarsia::matmul {

template Status LaunchStreamOf<DType::kBF16>(const QuantizedParams&, const QuantizedPlan&,
                                             const CudaContext&);

}  // namespace intarsia::matmul
