// Split-KV decode: attention for few query rows over many keys, bound by the reading of K and V.
// Correct for any ragged batch; meant for sequences with few rows, len_q * G <= 64 or so.
// Params.max_splits and workspace come from workspace.h.
#pragma once
#include <cstdint>
#include <limits>

#include "src/attention/cuda/forward_launch.h"
#include "src/attention/cuda/sm80/tiles.h"
#include "src/attention/workspace.h"

namespace intarsia::attention {

struct DecodeRows {
  // Only sequences with len_q * G <= max_packed_rows, where G = h / hk; the others are left alone.
  int64_t max_packed_rows = std::numeric_limits<int64_t>::max();
  // Whether to write the rows outside of all sequences, too: out = 0, lse = -inf.
  bool fill_padding = true;
  // With a prefill kernel that takes some of them.
  Sharing sharing = {};
};

// Instantiated in decode_<dtype>.cu.
template <DType kKeyType>
Status LaunchDecodeOf(const Params& params, const CudaContext& context, TileSize size,
                      DecodeRows rows);
extern template Status LaunchDecodeOf<kF32>(const Params&, const CudaContext&, TileSize,
                                            DecodeRows);
extern template Status LaunchDecodeOf<kF16>(const Params&, const CudaContext&, TileSize,
                                            DecodeRows);
extern template Status LaunchDecodeOf<kBF16>(const Params&, const CudaContext&, TileSize,
                                             DecodeRows);
extern template Status LaunchDecodeOf<kF8E4M3>(const Params&, const CudaContext&, TileSize,
                                               DecodeRows);
extern template Status LaunchDecodeOf<kF8E5M2>(const Params&, const CudaContext&, TileSize,
                                               DecodeRows);

inline Status LaunchDecode(const Params& params, const CudaContext& context, TileSize size,
                           DecodeRows rows = {}) {
  return LaunchByKeyType(params, [&]<DType kKeyType>(const Params& p) {
    return LaunchDecodeOf<kKeyType>(p, context, size, rows);
  });
}

}  // namespace intarsia::attention
