// The launches of one dtype; each grouped_<dtype>.cu instantiates them.
#pragma once
#include "src/matmul/cuda/sm80/grouped.h"
#include "src/matmul/cuda/sm80/stream.cuh"
#include "src/matmul/cuda/sm80/tiles.cuh"
#include "src/matmul/cuda/sm80/weight_gradient.cuh"

namespace intarsia::matmul {

template <DType kType, bool kTransposed>
Status LaunchOrder(const GroupedParams& p, const CudaContext& context,
                   const GroupedCandidate& candidate) {
  if constexpr (Bytes(kType) == 2) {
    if (candidate.kernel == GroupedKernel::kStream) {
      if constexpr (kTransposed)
        if (p.gating.is_there) return LaunchStream<StreamConfig<kType, true, true>>(p, context);
      return LaunchStream<StreamConfig<kType, kTransposed>>(p, context);
    }
    if (candidate.rows == 128) return LaunchTiles<TileConfig<kType, 128, kTransposed>>(p, context);
  }
  return LaunchTiles<TileConfig<kType, 64, kTransposed>>(p, context);
}

template <DType kType>
Status LaunchGroupedOf(const GroupedParams& p, const CudaContext& context,
                       const GroupedCandidate& candidate) {
  return p.transposed ? LaunchOrder<kType, true>(p, context, candidate)
                      : LaunchOrder<kType, false>(p, context, candidate);
}

template <DType kType>
Status LaunchGroupedGradientOf(const GroupedGradientParams& p, const CudaContext& context) {
  return LaunchGradient<kType>(p, context);
}

}  // namespace intarsia::matmul
