#include "src/attention/decode.cuh"

namespace intarsia::attention {
template Status LaunchDecodeOf<kF32>(const Params&, const CudaContext&, DecodeRows);
}  // namespace intarsia::attention
