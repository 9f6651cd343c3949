// The kernel of products with weights in codes, and which instance of it a plan asks for.
#pragma once
#include "src/matmul/cuda/formats.h"
#include "src/matmul/cuda/sm80/quantized.cuh"
#include "src/matmul/cuda/sm80/quantized.h"

namespace intarsia::matmul {

// The sums of rows of x and of the columns from `first_of_cta` on go to shared memory: [k_warps,
// S::kRows, columns + 1]; of stages [first_stage, end_stage).
template <class S, class RowOf>
__device__ __forceinline__ float* MultiplyRing(const QuantizedParams& p, const QuantizedPlan& plan,
                                               int rows, int64_t first_of_cta, int first_stage,
                                               int end_stage, char* shared, RowOf row_of) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int k_warp = warp / plan.tile_warps, tile_warp = warp % plan.tile_warps;
  const int64_t first_tile = first_of_cta + tile_warp * S::kTiles;
  using Stream = CodeStream<S, RowOf>;
  const Stream stream(p, plan, rows, first_tile, tile_warp, row_of);
  CodeProduct<S, Stream> product(p, stream, first_tile);

  // This ring's stages: begin + j * k_warps. Rings with a stage less than others arrive at their
  // barriers as often: else racecheck (2025.3) takes the barrier behind the loop for none.
  const int begin = first_stage + k_warp;
  const int count = max(end_stage - begin + plan.k_warps - 1, 0) / plan.k_warps;
  const int rounds = (end_stage - first_stage + plan.k_warps - 1) / plan.k_warps;
  char* const ring = shared + k_warp * S::kStages * plan.stage_bytes;
  const auto load = [&](int place, int j) {
    if (j < count) stream.Load(ring + place * plan.stage_bytes, begin + j * plan.k_warps);
    cuda::CpAsyncCommit();
  };
#pragma unroll
  for (int j = 0; j < S::kStages - 1; ++j) load(j, j);
  for (int j = 0, place = 0; j < rounds; ++j) {
    cuda::CpAsyncWait<S::kStages - 2>();
    // Stage j is here, and nobody reads stage j - 1 any more.
    if (plan.tile_warps == 1)
      __syncwarp();
    else
      cuda::BarrierSync(1 + k_warp, 32 * plan.tile_warps);
    load(place == 0 ? S::kStages - 1 : place - 1, j + S::kStages - 1);
    if (j < count) product.AddStage(ring + place * plan.stage_bytes, begin + j * plan.k_warps);
    place = place + 1 == S::kStages ? 0 : place + 1;
  }
  cuda::CpAsyncWait<0>();
  __syncthreads();  // the ring becomes room for sums
  auto* const sums = reinterpret_cast<float*>(shared);
  const int pitch = static_cast<int>(plan.cta_tiles() * kTileRows) + 1;
#pragma unroll
  for (int t = 0; t < S::kTiles; ++t) {
#pragma unroll
    for (int n = 0; n < S::kRowBlocks; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = 8 * n + lane % 4 * 2 + e % 2;
        const int column = (tile_warp * S::kTiles + t) * 16 + lane / 4 * 2 + e / 2;
        sums[(k_warp * S::kRows + row) * pitch + column] = product.Sums(t, n)[e];
      }
    }
  }
  return sums;
}

// Grid: tiles of columns, tiles of rows, splits, which are a cluster.
template <class S>
__global__ void __launch_bounds__(32 * kMostWarps, S::kMinBlocks)
    QuantizedKernel(const __grid_constant__ QuantizedParams p,
                    const __grid_constant__ QuantizedPlan plan) {
  extern __shared__ __align__(128) char shared[];
  const int all = (static_cast<int>(p.k) + kStageColumns - 1) / kStageColumns;
  const int split = static_cast<int>(blockIdx.z), splits = cuda::HasClusters() ? plan.splits : 1;
  if (split >= splits) return;
  const int64_t first_of_cta = blockIdx.x * plan.cta_tiles();
  const int first_row = static_cast<int>(blockIdx.y) * S::kRows;
  const auto* const x = static_cast<const typename S::T*>(p.x) + first_row * p.k;
  float* const sums = MultiplyRing<S>(
      p, plan, min(S::kRows, static_cast<int>(p.m) - first_row), first_of_cta, all * split / splits,
      all * (split + 1) / splits, shared, [&](int row) { return x + row * p.k; });
  StoreSums<S>(p, plan, sums, first_row, first_of_cta * kTileRows);
}

template <class S>
inline const cuda::Kernel kQuantizedKernel("QuantizedKernel",
                                           reinterpret_cast<const void*>(&QuantizedKernel<S>),
                                           kMostSharedBytes);

template <class S>
Status LaunchQuantized(const QuantizedParams& p, const QuantizedPlan& plan,
                       const CudaContext& context) {
  return cuda::Launch(context, kQuantizedKernel<S>, ConfigOf(p, plan), p, plan);
}

template <DType kType, Format kFormat>
Status LaunchFormat(const QuantizedParams& p, const QuantizedPlan& plan,
                    const CudaContext& context) {
  if constexpr (kType != DType::kF32 &&
                (kFormat == Format::kU4 || kFormat == Format::kU4B8 || kFormat == Format::kE2M1)) {
    if (!plan.fine) {
      if (plan.shape.rows == 8)
        return LaunchQuantized<QuantizedConfig<kType, kFormat, false, 8, 1>>(p, plan, context);
      if (plan.shape.rows == 16)
        return LaunchQuantized<QuantizedConfig<kType, kFormat, false, 16, 2>>(p, plan, context);
      return LaunchQuantized<QuantizedConfig<kType, kFormat, false, 32, 2>>(p, plan, context);
    }
  }
  if (plan.shape.rows == 8)
    return LaunchQuantized<QuantizedConfig<kType, kFormat, true, 8, 1>>(p, plan, context);
  return LaunchQuantized<QuantizedConfig<kType, kFormat, true, 32, 2>>(p, plan, context);
}

template <DType kType>
Status LaunchQuantizedOf(const QuantizedParams& p, const QuantizedPlan& plan,
                         const CudaContext& context) {
  return DispatchFormat(
      p.format, [&]<Format kFormat>() { return LaunchFormat<kType, kFormat>(p, plan, context); });
}

}  // namespace intarsia::matmul
