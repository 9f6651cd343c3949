// The end of a product with weights in codes, and its launch: the same for kernels of all
// architectures.
#pragma once
#include "src/core/cuda/cluster.cuh"
#include "src/core/cuda/launch.h"
#include "src/core/cuda/vec.cuh"
#include "src/matmul/cuda/quantized_plan.h"

namespace intarsia::matmul {

// To out[to], rounded once.
template <class T>
__device__ __forceinline__ void StoreSum(const QuantizedParams& p, int64_t to, float sum) {
  if (p.out_dtype == DType::kF32)
    static_cast<float*>(p.out)[to] = sum;
  else
    static_cast<T*>(p.out)[to] = cuda::FromFloat<T>(sum);
}

// With what a result has beside its sum, if its row exists. Else 0: w may be infinite.
template <class T>
__device__ __forceinline__ void StoreResult(const QuantizedParams& p, int64_t row, int64_t column,
                                            float sum, bool exists) {
  const int64_t to = row * p.n() + column;
  float added = 0.0f;
  if (!exists) sum = 0.0f;
  if (p.bias && exists) added = cuda::ToFloat(static_cast<const T*>(p.bias)[column]);
  if (p.residual) added += cuda::ToFloat(static_cast<const T*>(p.residual)[to]);
  StoreSum<T>(p, to, sum + added);
}

__device__ __forceinline__ void Add(float& sum, float x) { sum += x; }
__device__ __forceinline__ void Add(float4& sum, const float4& x) {
  sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
}

// The sum of what all CTAs of a cluster have at a place in shared memory, in their order; Floats:
// float, or four of them.
template <class Floats>
__device__ __forceinline__ Floats SumOfCluster(const Floats* at, int ctas) {
  Floats parts[kMostSplits];  // all asked for at once
#pragma unroll
  for (int cta = 0; cta < kMostSplits; ++cta)
    parts[cta] = cta < ctas ? cuda::LoadFromBlock(at, cta) : Floats{};
  Floats sum{};
#pragma unroll
  for (int cta = 0; cta < kMostSplits; ++cta) Add(sum, parts[cta]);
  return sum;
}

// Adds sums of all warps and all CTAs of the cluster, in this order, and stores the results.
// `sums`: [k_warps, rows, columns + 1] in shared memory, of each CTA. exists(row): as in
// StoreResult.
template <class S, class Exists>
__device__ __forceinline__ void StoreSums(const QuantizedParams& p, const QuantizedPlan& plan,
                                          float* sums, int first_row, int64_t first_column,
                                          Exists exists) {
  using T = typename S::T;
  // A power of two: warps side by side, and tiles of each.
  const int columns = static_cast<int>(plan.cta_tiles() * kTileRows), pitch = columns + 1;
  const int shift = 31 - __clz(columns), threads = static_cast<int>(blockDim.x);
  const int rows = min(S::kRows, static_cast<int>(p.m) - first_row);
  const int ctas = cuda::ClusterSize(), rank = cuda::ClusterRank();
  __syncthreads();
  if (ctas > 1) {
    if (plan.k_warps > 1) {
      for (int i = static_cast<int>(threadIdx.x); i < rows * columns; i += threads) {
        const int at = (i >> shift) * pitch + (i & (columns - 1));
        for (int warp = 1; warp < plan.k_warps; ++warp)
          sums[at] += sums[warp * S::kRows * pitch + at];
      }
    }
    cuda::ClusterSync();
  }
  for (int i = static_cast<int>(threadIdx.x) + rank * threads; i < rows * columns;
       i += threads * ctas) {
    const int row = i >> shift, in_cta = i & (columns - 1), at = row * pitch + in_cta;
    const int64_t column = first_column + in_cta;
    if (column >= p.n()) continue;
    float sum = 0.0f;
    if (ctas > 1)
      sum = SumOfCluster(sums + at, ctas);
    else
      for (int warp = 0; warp < plan.k_warps; ++warp) sum += sums[warp * S::kRows * pitch + at];
    StoreResult<T>(p, first_row + row, column, sum, exists(row));
  }
  if (ctas > 1) cuda::ClusterSyncReads();  // nobody reads this block's memory any more
}

template <class S>
__device__ __forceinline__ void StoreSums(const QuantizedParams& p, const QuantizedPlan& plan,
                                          float* sums, int first_row, int64_t first_column) {
  StoreSums<S>(p, plan, sums, first_row, first_column, [](int) { return true; });
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
