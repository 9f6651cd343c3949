#include "src/matmul/cuda/sm80/scaled_stream.cuh"
#include "src/matmul/cuda/sm80/scaled_tiles.cuh"

namespace intarsia::matmul {
template Status LaunchScaledStreamOf<DType::kF8E4M3>(const ScaledParams&, const CudaContext&);
template Status LaunchScaledTilesOf<DType::kF8E4M3>(const ScaledParams&, const CudaContext&);
}  // namespace intarsia::matmul
