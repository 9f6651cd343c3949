#include "src/ops/fused_experts_quantized/few_tokens.cuh"

namespace intarsia::cuda {

template Status RunFewTokens<DType::kBF16>(const ExpertsPass&, const matmul::QuantizedParams&,
                                           const matmul::QuantizedParams&, const CudaContext&);

}  // namespace intarsia::cuda
