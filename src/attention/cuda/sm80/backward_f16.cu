#include "src/attention/cuda/sm80/backward.cuh"

namespace intarsia::attention {
template Status LaunchBackwardOf<kF16>(const BackwardParams&, const CudaContext&, TileSize, bool);
}  // namespace intarsia::attention
