#include "src/attention/cuda/sm80/decode.cuh"

namespace intarsia::attention {
template Status LaunchDecodeOf<kF32>(const Params&, const CudaContext&, TileSize, DecodeRows);
}  // namespace intarsia::attention
