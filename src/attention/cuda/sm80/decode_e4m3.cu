#include "src/attention/cuda/sm80/decode.cuh"

namespace intarsia::attention {
template Status LaunchDecodeOf<kF8E4M3>(const Params&, const CudaContext&, TileSize, DecodeRows);
}  // namespace intarsia::attention
