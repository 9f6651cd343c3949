#include "src/matmul/cuda/sm90/scaled.cuh"

namespace intarsia::matmul::sm90 {
template Status LaunchScaledOf<DType::kI8>(const ScaledParams&, const CudaContext&);
}  // namespace intarsia::matmul::sm90
