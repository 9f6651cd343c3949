// The kernel of warpgroups.cuh, and its launch.
#pragma once
#include <array>

#include "src/core/cuda/tensor_map.h"
#include "src/matmul/cuda/quantized_store.cuh"
#include "src/matmul/cuda/rows.cuh"
#include "src/matmul/cuda/sm90/warpgroups.cuh"
#include "src/matmul/cuda/sm90/warpgroups.h"

namespace intarsia::matmul::sm90 {

// Adds the sums of a cluster's CTAs in their order.
template <class S>
__device__ __forceinline__ void StoreCluster(const QuantizedParams& p, const WarpgroupsTask& task,
                                             const float* sums) {
  constexpr int kColumns = S::kTiles * static_cast<int>(kTileRows);
  const int ctas = cuda::ClusterSize(), rank = cuda::ClusterRank();
  const int rows = min(S::kRows, static_cast<int>(p.m) - task.first_row);
  cuda::ClusterSync();
  for (int i = static_cast<int>(threadIdx.x) + rank * S::kThreads; i < rows * kColumns;
       i += S::kThreads * ctas) {
    const int row = i / kColumns, column = i % kColumns;
    if (column < task.tiles * static_cast<int>(kTileRows))
      StoreResult<typename S::T>(p, task.first_row + row, task.first_tile * kTileRows + column,
                                 SumOfCluster(sums + row * S::kPitch + column, ctas), true);
  }
  cuda::ClusterSyncReads();  // nobody reads this block's memory any more
}

// Grid: kTiles tiles of w each, tiles of rows, splits, which are a cluster.
template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kByWarps ? 2 : 1)
    WarpgroupsCodesKernel(const __grid_constant__ QuantizedParams p,
                          const __grid_constant__ QuantizedPlan plan,
                          const __grid_constant__ WarpgroupsMaps maps) {
  auto& shared = *reinterpret_cast<WarpgroupsShared<S>*>(cuda::DynamicShared());
  const int all = static_cast<int>(p.k) / kStageColumns;
  const int split = static_cast<int>(blockIdx.z), splits = plan.splits;
  const int64_t first_tile = int64_t{blockIdx.x} * S::kTiles;
  const WarpgroupsTask task{
      .first_tile = first_tile,
      .tiles = static_cast<int>(min(p.tiles - first_tile, int64_t{S::kTiles})),
      .first_row = static_cast<int>(blockIdx.y) * S::kRows,
      .begin = all * split / splits,
      .end = all * (split + 1) / splits};
  if (threadIdx.x == 0) {
    shared.ring.Init(1, S::kMultipliers / 32);
    cuda::PublishBarriers();
    cuda::PrefetchMap(maps.x), cuda::PrefetchMap(maps.codes), cuda::PrefetchMap(maps.scales);
    if constexpr (S::kPoints) cuda::PrefetchMap(maps.points);
  }
  __syncthreads();
  cuda::AwaitPrevious();
  cuda::LetNextBegin();
  // The same in all lanes, and by this the compiler knows it.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp >= S::kMultipliers / 32) {
    if constexpr (!S::kByWarps) cuda::ReleaseRegisters<S::kCopying>();
    if (threadIdx.x == S::kMultipliers) CopyStages<S>(p, plan, maps, task, shared);
    __syncwarp();
    if (splits == 1) return;
    __syncthreads();
  } else {
    if constexpr (!S::kByWarps) cuda::TakeRegisters<S::kMultiplyingRegisters>();
    WarpgroupsProduct<S> product(p, task, shared, warp / 4);
    product.Run();
    const int rows = min(S::kRows, static_cast<int>(p.m) - task.first_row);
    if (splits == 1) {
      product.ForEachPair([&](int tile, int in_tile, int row, float x, float y) {
        if (tile >= task.tiles || row >= rows) return;
        const int64_t column = (task.first_tile + tile) * kTileRows + in_tile;
        if (p.bias) {
          const auto* const bias = static_cast<const typename S::T*>(p.bias) + column;
          x += cuda::ToFloat(bias[0]), y += cuda::ToFloat(bias[1]);
        }
        StorePair(p.out, p.out_dtype, (task.first_row + row) * p.n() + column, 2, x, y);
      });
      return;
    }
    __syncthreads();  // all stages are read, and become room for sums
    product.ForEachPair([&](int tile, int in_tile, int row, float x, float y) {
      *reinterpret_cast<float2*>(shared.sums + row * S::kPitch +
                                 tile * static_cast<int>(kTileRows) + in_tile) = make_float2(x, y);
    });
  }
  StoreCluster<S>(p, task, shared.sums);
}

template <class S>
inline const cuda::Kernel kWarpgroupsCodesKernel(
    "WarpgroupsCodesKernel", reinterpret_cast<const void*>(&WarpgroupsCodesKernel<S>),
    static_cast<int>(sizeof(WarpgroupsShared<S>)), cuda::kHopper);

template <class S>
Status LaunchWarpgroups(const QuantizedParams& p, const QuantizedPlan& plan,
                        const CudaContext& context) {
  // Of 228 KB a multiprocessor, each CTA takes 1 KB for itself (CUDA's programming guide, 9.0).
  static_assert((S::kByWarps ? 2 : 1) * (sizeof(WarpgroupsShared<S>) + 1024) <= 228 * 1024);
  WarpgroupsMaps maps;
  const std::array<cuda::MapAxis, 1> rows{{{p.m, p.k, S::kRows}}};
  INTARSIA_RETURN_IF_ERROR(cuda::MakePanelMap(p.dtype, p.x, p.k, rows, maps.x));
  const int64_t tile = p.tile_bytes() / 4, scales = plan.scale_bytes / 4;
  const std::array<cuda::MapAxis, 1> tiles{{{p.tiles, tile, S::kTiles}}};
  INTARSIA_RETURN_IF_ERROR(cuda::MakeWordMap(p.packed, tile, S::kTileBytes / 4, tiles, maps.codes));
  // Of each tile and group, so many words.
  const auto factors = [&](const void* data, int64_t words, CUtensorMap& map) {
    const std::array<cuda::MapAxis, 2> groups{
        {{p.groups, words, 1}, {p.tiles, p.groups * words, S::kTiles}}};
    return cuda::MakeWordMap(data, words, static_cast<int>(words), groups, map);
  };
  INTARSIA_RETURN_IF_ERROR(factors(p.scales.data, scales, maps.scales));
  if (S::kPoints) INTARSIA_RETURN_IF_ERROR(factors(p.zeros.data, plan.zero_bytes / 4, maps.points));
  cuda::LaunchConfig config{
      {CeilDiv<int64_t>(p.tiles, S::kTiles), CeilDiv<int64_t>(p.m, S::kRows), plan.splits},
      dim3(S::kThreads),
      static_cast<int>(sizeof(WarpgroupsShared<S>))};
  config.cluster.z = static_cast<unsigned>(plan.splits);
  config.overlaps_previous = true;
  return cuda::Launch(context, kWarpgroupsCodesKernel<S>, config, p, plan, maps);
}

template <DType kType, bool kPoints>
Status LaunchWarpgroupsWith(const QuantizedParams& p, const QuantizedPlan& plan,
                            const CudaContext& context) {
  const auto launch = [&]<int kRows>() {
    return LaunchWarpgroups<WarpgroupsConfig<kType, kRows, kPoints>>(p, plan, context);
  };
  if (plan.shape.rows == 8) return launch.template operator()<8>();
  if (plan.shape.rows == 16) return launch.template operator()<16>();
  if (plan.shape.rows == 32) return launch.template operator()<32>();
  return launch.template operator()<64>();
}

template <DType kType>
Status LaunchWarpgroupsOf(const QuantizedParams& p, const QuantizedPlan& plan,
                          const CudaContext& context) {
  return p.zeros.data ? LaunchWarpgroupsWith<kType, true>(p, plan, context)
                      : LaunchWarpgroupsWith<kType, false>(p, plan, context);
}

}  // namespace intarsia::matmul::sm90
