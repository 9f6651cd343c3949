// Attention of tiles of many query rows on Hopper, sm_90a: what attention.h says, for bf16 and f16,
// over a cache of fp8, too, and for e4m3.
#pragma once
#include "src/attention/cuda/forward_launch.h"

namespace intarsia::attention::sm90 {

// Whether LaunchPrefill takes these operands, as far as they decide: types, sizes and strides.
bool Supports(const Params& params);

// Whether such a call's workspace has room for the pieces of so many CTAs. The kernel then takes
// short sequences over any number of keys, too.
bool HasRoomForPieces(const Params& params, int64_t ctas);

// Computes the sequences that `rows` says. `params` must be supported.
Status LaunchPrefill(const Params& params, const CudaContext& context,
                     const PrefillRows& rows = {});

// Instantiated in prefill_<dtype>_sm90.cu.
template <DType kType>
Status LaunchPrefillOf(const Params& params, const CudaContext& context, const PrefillRows& rows);
extern template Status LaunchPrefillOf<kBF16>(const Params&, const CudaContext&,
                                              const PrefillRows&);
extern template Status LaunchPrefillOf<kF16>(const Params&, const CudaContext&, const PrefillRows&);

// q, K and V in e4m3, by the type of the results. Instantiated in prefill_e4m3_<dtype>_sm90.cu.
template <DType kOut>
Status LaunchE4M3Of(const Params& params, const CudaContext& context, const PrefillRows& rows);
extern template Status LaunchE4M3Of<kBF16>(const Params&, const CudaContext&, const PrefillRows&);
extern template Status LaunchE4M3Of<kF16>(const Params&, const CudaContext&, const PrefillRows&);

// K and V in e4m3 or e5m2, by the type of q and the results. Instantiated in
// prefill_fp8_<dtype>_sm90.cu.
template <DType kOut>
Status LaunchCodesOf(const Params& params, const CudaContext& context, const PrefillRows& rows);
extern template Status LaunchCodesOf<kBF16>(const Params&, const CudaContext&, const PrefillRows&);
extern template Status LaunchCodesOf<kF16>(const Params&, const CudaContext&, const PrefillRows&);

}  // namespace intarsia::attention::sm90
