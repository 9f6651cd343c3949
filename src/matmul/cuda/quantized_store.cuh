// The end of a product with weights in codes, and its launch: the same for kernels of all
// architectures.
#pragma once
#include "src/core/cuda/cluster.cuh"
#include "src/core/cuda/launch.h"
#include "src/core/cuda/vec.cuh"
#include "src/matmul/cuda/quantized_plan.h"

namespace intarsia::matmul {

// Adds sums of all warps and all CTAs of the cluster, in this order, and stores the results.
// `sums`: [k_warps, rows, columns + 1] in shared memory, of each CTA.
template <class S>
__device__ __forceinline__ void StoreSums(const QuantizedParams& p, const QuantizedPlan& plan,
                                          float* sums, int first_row, int64_t first_column) {
  using T = typename S::T;
  const int columns = static_cast<int>(plan.cta_tiles() * kTileRows), pitch = columns + 1;
  const int rows = min(S::kRows, static_cast<int>(p.m) - first_row);
  const int ctas = cuda::ClusterSize(), rank = cuda::ClusterRank();
  __syncthreads();
  if (ctas > 1) {
    for (int i = static_cast<int>(threadIdx.x); i < rows * columns;
         i += static_cast<int>(blockDim.x)) {
      const int at = i / columns * pitch + i % columns;
      for (int warp = 1; warp < plan.k_warps; ++warp)
        sums[at] += sums[warp * S::kRows * pitch + at];
    }
    cuda::ClusterSync();
  }
  for (int i = static_cast<int>(threadIdx.x) + rank * static_cast<int>(blockDim.x);
       i < rows * columns; i += static_cast<int>(blockDim.x) * ctas) {
    const int row = i / columns, at = row * pitch + i % columns;
    const int64_t column = first_column + i % columns;
    if (column >= p.n()) continue;
    float sum = 0.0f;
    if (ctas > 1) {
      for (int cta = 0; cta < ctas; ++cta) sum += cuda::LoadFromBlock(sums + at, cta);
    } else {
      for (int warp = 0; warp < plan.k_warps; ++warp) sum += sums[warp * S::kRows * pitch + at];
    }
    if (p.bias) sum += cuda::ToFloat(static_cast<const T*>(p.bias)[column]);
    const int64_t to = (first_row + row) * p.n() + column;
    if (p.out_dtype == DType::kF32)
      static_cast<float*>(p.out)[to] = sum;
    else
      static_cast<T*>(p.out)[to] = cuda::FromFloat<T>(sum);
  }
  if (ctas > 1) cuda::ClusterSync();  // nobody reads this block's memory any more
}

inline cuda::LaunchConfig ConfigOf(const QuantizedParams& p, const QuantizedPlan& plan) {
  cuda::LaunchConfig config{
      {CeilDiv(p.tiles, plan.cta_tiles()), CeilDiv<int64_t>(p.m, plan.shape.rows), plan.splits},
      dim3(static_cast<unsigned>(32 * plan.tile_warps * plan.k_warps)),
      plan.shared_bytes};
  config.cluster.z = static_cast<unsigned>(plan.splits);
  return config;
}

}  // namespace intarsia::matmul
