#include "src/matmul/cuda/sm80/quantized_row.cuh"

namespace intarsia::matmul {

template Status LaunchRowOf<DType::kBF16>(const QuantizedParams&, const QuantizedPlan&,
                                          const CudaContext&);

}  // namespace intarsia::matmul
