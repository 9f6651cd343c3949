// Attention of tiles of many query rows, bound by the tensor cores: prefill, on any GPU from sm_80
// on. Correct for any ragged batch; meant for sequences with more rows than decode.h's kernel
// takes.
#pragma once
#include <cstdint>

#include "src/attention/cuda/forward_launch.h"
#include "src/attention/cuda/sm80/tiles.h"

namespace intarsia::attention {

// Instantiated in prefill_<dtype>.cu.
template <DType kKeyType>
Status LaunchPrefillOf(const Params& params, const CudaContext& context, TileSize size,
                       PrefillRows rows);
extern template Status LaunchPrefillOf<kF32>(const Params&, const CudaContext&, TileSize,
                                             PrefillRows);
extern template Status LaunchPrefillOf<kF16>(const Params&, const CudaContext&, TileSize,
                                             PrefillRows);
extern template Status LaunchPrefillOf<kBF16>(const Params&, const CudaContext&, TileSize,
                                              PrefillRows);
extern template Status LaunchPrefillOf<kF8E4M3>(const Params&, const CudaContext&, TileSize,
                                                PrefillRows);
extern template Status LaunchPrefillOf<kF8E5M2>(const Params&, const CudaContext&, TileSize,
                                                PrefillRows);

inline Status LaunchPrefill(const Params& params, const CudaContext& context, TileSize size,
                            PrefillRows rows = {}) {
  return LaunchByKeyType(params, [&]<DType kKeyType>(const Params& p) {
    return LaunchPrefillOf<kKeyType>(p, context, size, rows);
  });
}

}  // namespace intarsia::attention
