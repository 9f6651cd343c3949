#include "src/attention/cuda/sm90/prefill.cuh"

namespace intarsia::attention::sm90 {
template Status LaunchCodesOf<kBF16>(const Params&, const CudaContext&, const PrefillRows&);
}  // namespace intarsia::attention::sm90
