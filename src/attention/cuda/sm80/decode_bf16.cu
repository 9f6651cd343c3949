#include "src/attention/cuda/sm80/decode.cuh"

namespace intarsia::attention {
template Status LaunchDecodeOf<kBF16>(const Params&, const CudaContext&, TileSize, DecodeRows);
}  // namespace intarsia::attention
