#include "src/attention/cuda/sm80/prefill.cuh"

namespace intarsia::attention {
template Status LaunchPrefillOf<kBF16>(const Params&, const CudaContext&, TileSize, PrefillRows);
}  // namespace intarsia::attention
