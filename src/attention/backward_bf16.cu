#include "src/attention/backward.cuh"

namespace intarsia::attention {
template Status LaunchBackwardOf<kBF16>(const BackwardParams&, const CudaContext&, bool);
}  // namespace intarsia::attention
