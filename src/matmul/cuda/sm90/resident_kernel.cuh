// The kernel of products with few rows of x, and which instance of it a plan asks for.
#pragma once
#include "src/matmul/cuda/formats.h"
#include "src/matmul/cuda/quantized_store.cuh"
#include "src/matmul/cuda/sm90/resident.cuh"
#include "src/matmul/cuda/sm90/resident.h"

namespace intarsia::matmul::sm90 {

// Grid: strips of tiles, tiles of rows, splits, which are a cluster.
template <class S>
__global__ void __launch_bounds__(32 * kMostResidentWarps, 1)
    ResidentCodesKernel(const __grid_constant__ QuantizedParams p,
                        const __grid_constant__ QuantizedPlan plan) {
  extern __shared__ __align__(128) char shared[];
  const int all = (static_cast<int>(p.k) + kStageColumns - 1) / kStageColumns;
  const int split = static_cast<int>(blockIdx.z), splits = plan.splits;
  const int first_row = static_cast<int>(blockIdx.y) * S::kRows;
  const auto strip = [&](int i) {
    return static_cast<int>(int64_t{i} * p.tiles / static_cast<int>(gridDim.x));
  };
  const int x = static_cast<int>(blockIdx.x);
  const ResidentTask task{.packed = p.packed,
                          .scales = p.scales,
                          .zeros = p.zeros,
                          .first_tile = strip(x),
                          .tiles = strip(x + 1) - strip(x),
                          .rows = min(S::kRows, static_cast<int>(p.m) - first_row),
                          .begin = all * split / splits,
                          .end = all * (split + 1) / splits};
  const ResidentMemory<S> memory(shared, plan, task);
  const auto* const rows = static_cast<const typename S::T*>(p.x) + first_row * p.k;
  const auto row_of = [&](int row) { return rows + row * p.k; };
  const auto store = [&](int tile, int row, int column, float sum) {
    StoreResult<typename S::T>(p, first_row + row, (task.first_tile + tile) * kTileRows + column,
                               sum, true);
  };
  if (splits == 1) {
    MultiplyResident<S>(
        p, plan, task, memory, row_of,
        [&](int tile, int row, int column, float sum) { store(tile, row, column, sum); });
    return;
  }
  const int of_tile = task.rows * static_cast<int>(kTileRows);
  MultiplyResident<S>(p, plan, task, memory, row_of, [&](int tile, int row, int column, float sum) {
    memory.results[tile * of_tile + row * static_cast<int>(kTileRows) + column] = sum;
  });
  cuda::ClusterSync();
  const int threads = static_cast<int>(blockDim.x), rank = cuda::ClusterRank();
  for (int i = static_cast<int>(threadIdx.x) + rank * threads; i < task.tiles * of_tile;
       i += threads * splits) {
    const int tile = i / of_tile, row = i % of_tile / static_cast<int>(kTileRows);
    store(tile, row, i % static_cast<int>(kTileRows), SumOfCluster(memory.results + i, splits));
  }
  cuda::ClusterSyncReads();  // nobody reads this block's memory any more
}

template <class S>
inline const cuda::Kernel kResidentCodesKernel(
    "ResidentCodesKernel", reinterpret_cast<const void*>(&ResidentCodesKernel<S>),
    kMostResidentBytes, cuda::kHopper);

template <class S>
Status LaunchResident(const QuantizedParams& p, const QuantizedPlan& plan,
                      const CudaContext& context) {
  cuda::LaunchConfig config{{plan.strips, CeilDiv<int64_t>(p.m, plan.shape.rows), plan.splits},
                            dim3(static_cast<unsigned>(32 * plan.tile_warps * plan.k_warps)),
                            plan.shared_bytes};
  config.cluster.z = static_cast<unsigned>(plan.splits);
  config.overlaps_previous = true;
  return cuda::Launch(context, kResidentCodesKernel<S>, config, p, plan);
}

template <DType kType, Format kFormat, bool kWide>
Status LaunchResidentRows(const QuantizedParams& p, const QuantizedPlan& plan,
                          const CudaContext& context) {
  if (plan.shape.rows == 8)
    return LaunchResident<ResidentConfig<kType, kFormat, kWide, 8>>(p, plan, context);
  return LaunchResident<ResidentConfig<kType, kFormat, kWide, 16>>(p, plan, context);
}

template <DType kType, Format kFormat>
Status LaunchResidentFormat(const QuantizedParams& p, const QuantizedPlan& plan,
                            const CudaContext& context) {
  if constexpr (kFormat != Format::kE2M1) {
    if (plan.kernel == QuantizedKernelKind::kWideResident)
      return LaunchResidentRows<kType, kFormat, true>(p, plan, context);
  }
  return LaunchResidentRows<kType, kFormat, false>(p, plan, context);
}

template <DType kType>
Status LaunchResidentOf(const QuantizedParams& p, const QuantizedPlan& plan,
                        const CudaContext& context) {
  return DispatchStreamed(p.format, [&]<Format kFormat>() {
    return LaunchResidentFormat<kType, kFormat>(p, plan, context);
  });
}

}  // namespace intarsia::matmul::sm90
