// The gradient's main kernel, instantiated in backward_<dtype>.cu. The workspace is prepared.
#pragma once
#include "src/attention/backward.h"
#include "src/attention/cuda/sm80/tiles.h"
#include "src/core/dispatch.h"

namespace intarsia::attention {

// aligned: all rows of all arrays begin at multiples of 16 bytes.
template <DType kType>
Status LaunchBackwardOf(const BackwardParams& params, const CudaContext& context, TileSize size,
                        bool aligned);
extern template Status LaunchBackwardOf<kF32>(const BackwardParams&, const CudaContext&, TileSize,
                                              bool);
extern template Status LaunchBackwardOf<kF16>(const BackwardParams&, const CudaContext&, TileSize,
                                              bool);
extern template Status LaunchBackwardOf<kBF16>(const BackwardParams&, const CudaContext&, TileSize,
                                               bool);

}  // namespace intarsia::attention
