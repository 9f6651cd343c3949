// The kernel of warpgroups.cuh, and its launch.
#pragma once
#include <array>

#include "src/activation/gating.cuh"
#include "src/core/cuda/tensor_map.h"
#include "src/matmul/cuda/quantized_store.cuh"
#include "src/matmul/cuda/rows.cuh"
#include "src/matmul/cuda/sm90/warpgroups.cuh"
#include "src/matmul/cuda/sm90/warpgroups.h"

namespace intarsia::matmul::sm90 {

inline constexpr int kMultipliersBarrier = 1;

template <class S>
__device__ __forceinline__ float4 SumOfParts(const WarpgroupsShared<S>& shared, int at) {
  float4 sum = *shared.Sums(0, at);
#pragma unroll
  for (int part = 1; part < S::kParts; ++part) Add(sum, *shared.Sums(part, at));
  return sum;
}

// Four neighboring sums of a row of x from column `column` of the CTA on, which is column `of_all`
// of w: all parts', or all CTAs' of a cluster.
template <class S>
__device__ __forceinline__ cuda::Pack<float, 4> FourSums(const QuantizedParams& p, int ctas,
                                                         const WarpgroupsShared<S>& shared, int row,
                                                         int column, int64_t of_all) {
  using T = typename S::T;
  const int at = row * S::kPitch + column;
  const float4 all = ctas > 1 ? SumOfCluster(shared.Sums(0, at), ctas) : SumOfParts<S>(shared, at);
  cuda::Pack<float, 4> sum{{all.x, all.y, all.z, all.w}};
  if (p.bias) {
    const auto bias = cuda::ToFloats(
        *reinterpret_cast<const cuda::Pack<T, 4>*>(static_cast<const T*>(p.bias) + of_all));
#pragma unroll
    for (int e = 0; e < 4; ++e) sum.at[e] += bias.at[e];
  }
  return sum;
}

template <class T>
__device__ __forceinline__ void StoreFour(const QuantizedParams& p, int64_t to,
                                          cuda::Pack<float, 4> sum) {
  if (p.residual) {
    const auto residual = cuda::ToFloats(
        *reinterpret_cast<const cuda::Pack<T, 4>*>(static_cast<const T*>(p.residual) + to));
#pragma unroll
    for (int e = 0; e < 4; ++e) sum.at[e] += residual.at[e];
  }
  if (p.out_dtype == DType::kF32)
    *reinterpret_cast<cuda::Pack<float, 4>*>(static_cast<float*>(p.out) + to) = sum;
  else
    *reinterpret_cast<cuda::Pack<T, 4>*>(static_cast<T*>(p.out) + to) = cuda::FromFloats<T>(sum);
}

// By all threads that multiply, when all have written their sums: adds those of a cluster's CTAs,
// or of parts, in their order, and stores a share of the results, four columns at a time.
template <class S, bool kGated>
__device__ __forceinline__ void StoreShare(const QuantizedParams& p, const WarpgroupsTask& task,
                                           int ctas, const WarpgroupsShared<S>& shared) {
  using T = typename S::T;
  constexpr int kColumns = S::kTiles * static_cast<int>(kTileRows) / (kGated ? 2 : 1);
  constexpr int kFours = kColumns / 4;
  const int rows = min(S::kRows, static_cast<int>(p.m) - task.first_row);
  for (int i = static_cast<int>(threadIdx.x) + cuda::ClusterRank() * S::kMultipliers;
       i < rows * kFours; i += S::kMultipliers * ctas) {
    const int row = i / kFours, column = i % kFours * 4;
    if (column >= task.tiles * static_cast<int>(kTileRows)) continue;
    const int64_t of_all = task.first_tile * kTileRows + column;
    auto sum = FourSums<S>(p, ctas, shared, row, column, of_all);
    if constexpr (kGated) {
      const auto up = FourSums<S>(p, ctas, shared, row, kColumns + column, p.n() / 2 + of_all);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        sum.at[e] =
            cuda::Gate<T>(p.gating, cuda::RoundTo<T>(sum.at[e]), cuda::RoundTo<T>(up.at[e]));
    }
    StoreFour<T>(p, (task.first_row + row) * p.results() + of_all, sum);
  }
}

// Grid: tiles of w (WarpgroupsHalves), tiles of rows, splits, which are a cluster.
template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kCtas)
    WarpgroupsCodesKernel(const __grid_constant__ QuantizedParams p,
                          const __grid_constant__ QuantizedPlan plan,
                          const __grid_constant__ WarpgroupsMaps maps) {
  auto& shared = *reinterpret_cast<WarpgroupsShared<S>*>(cuda::DynamicShared());
  const int all = static_cast<int>(p.k) / kStageColumns;
  const int split = static_cast<int>(blockIdx.z), splits = plan.splits;
  const WarpgroupsHalves<S> halves(p);
  const int64_t first_tile = int64_t{blockIdx.x} * halves.cta_tiles;
  const WarpgroupsTask task{
      .first_tile = first_tile,
      .tiles = static_cast<int>(min(halves.tiles - first_tile, int64_t{halves.cta_tiles})),
      .first_row = static_cast<int>(blockIdx.y) * S::kRows,
      .begin = all * split / splits,
      .end = all * (split + 1) / splits};
  if (threadIdx.x == 0) {
    shared.ring.Init(1, S::kMultipliers / 32 / S::kParts);
    if constexpr (S::kSumsX)
      for (auto& summed : shared.summed) summed.Init(32 * kSummingWarps);
    cuda::PublishBarriers();
    cuda::PrefetchMap(maps.x), cuda::PrefetchMap(maps.codes), cuda::PrefetchMap(maps.scales);
    if constexpr (S::kZeros) cuda::PrefetchMap(maps.zeros);
    if (S::kMayHaveOuters && p.scales.outer) {
      cuda::PrefetchMap(maps.outer_scales);
      if constexpr (S::kMinimums) cuda::PrefetchMap(maps.outer_zeros);
    }
  }
  __syncthreads();
  // The same in all lanes, and by this the compiler knows it.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp >= S::kMultipliers / 32) {
    if constexpr (!S::kByWarps) cuda::ReleaseRegisters<S::kCopying>();
    if (threadIdx.x == S::kMultipliers) CopyStages<S>(p, plan, maps, task, shared);
    if constexpr (S::kSumsX)
      if (const int number = warp - S::kMultipliers / 32; number > 0)
        SumStages<S>(task, shared, number - 1, WarpgroupsProduct<S>::Pairs::kUnit);
    __syncwarp();
    if (splits > 1) cuda::ClusterSync();
  } else {
    if constexpr (!S::kByWarps) cuda::TakeRegisters<S::kMultiplyingRegisters>();
    WarpgroupsProduct<S> product(p, task, shared, warp / 4);
    product.Run();
    // All stages are read, and become room for sums.
    cuda::BarrierSync(kMultipliersBarrier, S::kMultipliers);
    product.WriteSums();
    if (splits == 1 || S::kParts > 1)  // else the cluster waits for them
      cuda::BarrierSync(kMultipliersBarrier, S::kMultipliers);
    if (splits > 1) {
      if constexpr (S::kParts > 1)
        for (int at = 4 * static_cast<int>(threadIdx.x); at < S::kRows * S::kPitch;
             at += 4 * S::kMultipliers)
          *shared.Sums(0, at) = SumOfParts<S>(shared, at);
      cuda::ClusterSync();
    }
    if (p.gating.is_there)
      StoreShare<S, true>(p, task, splits, shared);
    else
      StoreShare<S, false>(p, task, splits, shared);
  }
  if (splits > 1) cuda::ClusterSyncReads();  // nobody reads this block's memory any more
}

template <class S>
inline const cuda::Kernel kWarpgroupsCodesKernel(
    "WarpgroupsCodesKernel", reinterpret_cast<const void*>(&WarpgroupsCodesKernel<S>),
    static_cast<int>(sizeof(WarpgroupsShared<S>)), cuda::kHopper);

template <class S>
Status LaunchWarpgroups(const QuantizedParams& p, const QuantizedPlan& plan,
                        const CudaContext& context) {
  static_assert(cuda::HaveRoom(cuda::kHopper, S::kCtas, sizeof(WarpgroupsShared<S>)));
  WarpgroupsMaps maps;
  const std::array<cuda::MapAxis, 1> rows{{{p.m, p.k, S::kRows}}};
  INTARSIA_RETURN_IF_ERROR(cuda::MakePanelMap(p.dtype, p.x, p.k, rows, maps.x));
  const int64_t tile = p.tile_bytes() / 4;
  const WarpgroupsHalves<S> halves(p);
  // Tiles of a half, then halves, of so many words a tile.
  const auto tiles_of = [&](int64_t words) {
    return std::array<cuda::MapAxis, 2>{{{halves.tiles, words, halves.cta_tiles},
                                         {halves.count, halves.tiles * words, halves.count}}};
  };
  INTARSIA_RETURN_IF_ERROR(
      cuda::MakeWordMap(p.packed, tile, S::kBoxBytes / 4, tiles_of(tile), maps.codes));
  // Of each tile and group, so many words.
  const auto factors = [&](const void* data, int64_t count, int of_stage, int64_t words,
                           CUtensorMap& map) {
    const auto [tiles, both] = tiles_of(count * words);
    const std::array<cuda::MapAxis, 3> groups{{{count, words, of_stage}, tiles, both}};
    return cuda::MakeWordMap(data, words, static_cast<int>(words), groups, map);
  };
  const auto inner = [&](const void* data, int bytes, CUtensorMap& map) {
    return factors(data, p.groups, plan.stage_groups, bytes / 4, map);
  };
  INTARSIA_RETURN_IF_ERROR(inner(p.scales.data, plan.scale_bytes, maps.scales));
  if (S::kZeros) INTARSIA_RETURN_IF_ERROR(inner(p.zeros.data, plan.zero_bytes, maps.zeros));
  const auto outer = [&](const Factors& of, CUtensorMap& map) {
    return factors(of.outer, of.outers, 1, kOuterBytes / 4, map);
  };
  if (S::kMayHaveOuters && p.scales.outer) {
    INTARSIA_RETURN_IF_ERROR(outer(p.scales, maps.outer_scales));
    if (S::kMinimums) INTARSIA_RETURN_IF_ERROR(outer(p.zeros, maps.outer_zeros));
  }
  cuda::LaunchConfig config{{CeilDiv<int64_t>(halves.tiles, halves.cta_tiles),
                             CeilDiv<int64_t>(p.m, S::kRows), plan.splits},
                            dim3(S::kThreads),
                            static_cast<int>(sizeof(WarpgroupsShared<S>))};
  config.cluster.z = static_cast<unsigned>(plan.splits);
  config.overlaps_previous = true;
  return cuda::Launch(context, kWarpgroupsCodesKernel<S>, config, p, plan, maps);
}

template <DType kType, Format kFormat, GroupEnds kEnds>
Status LaunchManyRows(const QuantizedParams& p, const QuantizedPlan& plan,
                      const CudaContext& context) {
  const auto launch = [&]<int kRows, int kTiles>() {
    return LaunchWarpgroups<WarpgroupsConfig<kType, kFormat, kEnds, kRows, kTiles>>(p, plan,
                                                                                    context);
  };
  const auto rows = [&]<int kRows>() {
    return plan.shape.tiles == kNarrowTiles ? launch.template operator()<kRows, kNarrowTiles>()
                                            : launch.template operator()<kRows, kWideTiles>();
  };
  return plan.shape.rows == 32 ? rows.template operator()<32>() : rows.template operator()<64>();
}

template <DType kType, Format kFormat, GroupEnds kEnds>
Status LaunchAnyRows(const QuantizedParams& p, const QuantizedPlan& plan,
                     const CudaContext& context) {
  const auto launch = [&]<int kRows, int kParts>() {
    return LaunchWarpgroups<WarpgroupsConfig<kType, kFormat, kEnds, kRows, kFewRowsTiles, kParts>>(
        p, plan, context);
  };
  const auto few = [&]<int kRows>() {
    if constexpr (LeastParts(kRows, kFormat, kEnds == GroupEnds::kEach128) == 1)
      if (plan.k_warps == 1) return launch.template operator()<kRows, 1>();
    return launch.template operator()<kRows, 2>();
  };
  if (plan.shape.rows == 8) return few.template operator()<8>();
  if (plan.shape.rows == 16) return few.template operator()<16>();
  return LaunchManyRows<kType, kFormat, kEnds>(p, plan, context);
}

// 5 and 6 bits.
template <DType kType>
Status LaunchUpperBitsOf(const QuantizedParams& p, const QuantizedPlan& plan,
                         const CudaContext& context) {
  using enum GroupEnds;
  if (p.format == Format::kU5) return LaunchAnyRows<kType, Format::kU5, kEach32>(p, plan, context);
  if (p.format == Format::kU5B16)
    return LaunchAnyRows<kType, Format::kU5B16, kEach32>(p, plan, context);
  return LaunchAnyRows<kType, Format::kU6B32, kEach16>(p, plan, context);
}

template <DType kType>
Status LaunchWarpgroupsOf(const QuantizedParams& p, const QuantizedPlan& plan,
                          const CudaContext& context) {
  using enum GroupEnds;
  if (BitsOf(p.format) == 5 || BitsOf(p.format) == 6)
    return LaunchUpperBitsOf<kType>(p, plan, context);
  if constexpr (kType == DType::kBF16)
    if (p.format == Format::kE2M1)
      return IsNvFp4(p) ? LaunchAnyRows<kType, Format::kE2M1, kEach16>(p, plan, context)
                        : LaunchAnyRows<kType, Format::kE2M1, kEach32>(p, plan, context);
  if (p.format == Format::kE4M3)
    return LaunchManyRows<kType, Format::kE4M3, kEach128>(p, plan, context);
  const auto launch = [&]<Format kFormat>(bool wide) {
    return wide ? LaunchAnyRows<kType, kFormat, kEach128>(p, plan, context)
                : LaunchAnyRows<kType, kFormat, kEach32>(p, plan, context);
  };
  const bool wide = GroupEndsOf(p.group) == kEach128;
  if (p.format == Format::kI8) return launch.template operator()<Format::kI8>(wide);
  if (p.format == Format::kU4) return launch.template operator()<Format::kU4>(p.points);
  return launch.template operator()<Format::kU4B8>(wide);
}

}  // namespace intarsia::matmul::sm90
