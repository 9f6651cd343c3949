#include "src/attention/cuda/sm80/prefill.cuh"

namespace intarsia::attention {
template Status LaunchPrefillOf<kF8E5M2>(const Params&, const CudaContext&, TileSize, PrefillRows);
}  // namespace intarsia::attention
