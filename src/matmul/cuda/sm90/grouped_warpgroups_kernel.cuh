// The kernel of grouped_warpgroups.cuh, and its launch.
#pragma once
#include <algorithm>
#include <array>

#include "src/core/cuda/launch.h"
#include "src/core/cuda/tensor_map.h"
#include "src/matmul/cuda/choose.h"
#include "src/matmul/cuda/sm90/grouped_warpgroups.cuh"
#include "src/matmul/cuda/sm90/grouped_warpgroups.h"
#include "src/matmul/cuda/sm90/producer.cuh"

namespace intarsia::matmul::sm90 {

// Passed to the kernel by value. `plain`: all but the weights.
struct GroupedWarpgroupsCall {
  GroupedParams plain;
  QuantizedParams each;
  GroupedCodesCut cut;
  GroupedCodesMaps weights;
  CUtensorMap x;  // panel, row
};

// Grid: any; CTAs share the tasks.
template <class S, bool kGated>
__global__ void __launch_bounds__(S::kThreads, 1)
    GroupedWarpgroupsSm90Kernel(const __grid_constant__ GroupedWarpgroupsCall call) {
  auto& shared = *reinterpret_cast<Shared<S>*>(cuda::DynamicShared());
  RunRoles<S, typename S::T>(
      call.plain, call.x, shared, 4 * S::kConsumers, call.cut.StageBytes<S>(),
      [&] {
        cuda::PrefetchMap(call.weights.codes), cuda::PrefetchMap(call.weights.scales);
        if constexpr (S::kPoints) cuda::PrefetchMap(call.weights.zeros);
      },
      [&](char* to, const Unit& unit, int stage, cuda::Barrier& full) {
        CopyCodeBoxes<S>(call.each, call.weights, call.cut, unit, stage,
                         {to, to + S::kFactorsAt, S::kScaleBoxBytes}, full);
      },
      [&](int number) {
        GroupedWarpgroupsConsumer<S, kGated>(call.plain, call.each, call.cut, shared, number).Run();
      });
}

template <class S, bool kGated>
inline const cuda::Kernel kGroupedWarpgroupsKernel(
    "GroupedWarpgroupsSm90Kernel",
    reinterpret_cast<const void*>(&GroupedWarpgroupsSm90Kernel<S, kGated>), S::kSharedBytes,
    cuda::kHopper);

inline GroupedParams WithoutWeights(const QuantizedGroupsParams& p) {
  return {.dtype = p.each.dtype,
          .out_dtype = p.each.out_dtype,
          .x = p.each.x,
          .bias = p.each.bias,
          .out = p.each.out,
          .k = p.each.k,
          .n = p.each.n(),
          .x_rows = p.x_rows,
          .transposed = true,
          .groups = p.groups,
          .rows = p.each.rows,
          .gating = p.each.gating,
          .await = p.await};
}

template <class S, bool kGated>
Status LaunchGroupedWarpgroups(const QuantizedGroupsParams& p, const QuantizedPlan& plan,
                               const CudaContext& context) {
  GroupedWarpgroupsCall call{WithoutWeights(p), p.each, GroupedCodesCut::Of<S>(p, plan), {}, {}};
  INTARSIA_RETURN_IF_ERROR(MakeCodesMaps<S>(p, plan, call.cut, call.weights));
  const std::array<cuda::MapAxis, 1> of_x{{{p.x_rows, p.each.k, S::kBoxRows}}};
  INTARSIA_RETURN_IF_ERROR(cuda::MakePanelMap(p.each.dtype, p.each.x, p.each.k, of_x, call.x));
  const int64_t tasks =
      MostTiles(p.groups.m, p.groups.count, S::kRows) * int64_t{call.cut.column_tiles};
  const cuda::LaunchConfig config{.grid = {std::min<int64_t>(tasks, context.device->sms)},
                                  .block = dim3(S::kThreads),
                                  .shared_bytes = S::kSharedBytes,
                                  .overlaps_previous = p.await != Await::kNothing};
  return cuda::Launch(context, kGroupedWarpgroupsKernel<S, kGated>, config, call);
}

template <DType kType>
Status LaunchGroupedWarpgroupsOf(const QuantizedGroupsParams& p, const QuantizedPlan& plan,
                                 const CudaContext& context) {
  const auto launch_shape = [&]<Format kFormat, GroupEnds kEnds, QuantizedShape kShape>() {
    using S = GroupedWarpgroupsConfig<kType, kFormat, kEnds, kShape>;
    return p.each.gating.is_there ? LaunchGroupedWarpgroups<S, true>(p, plan, context)
                                  : LaunchGroupedWarpgroups<S, false>(p, plan, context);
  };
  const auto launch = [&]<Format kFormat, GroupEnds kEnds = GroupEnds::kEach128>() {
    return plan.shape == kFewWarpgroupsRows
               ? launch_shape.template operator()<kFormat, kEnds, kFewWarpgroupsRows>()
               : launch_shape.template operator()<kFormat, kEnds, kManyWarpgroupsRows>();
  };
  if constexpr (kType == DType::kBF16)
    if (p.each.format == Format::kE2M1)
      return IsNvFp4(p.each) ? launch.template operator()<Format::kE2M1, GroupEnds::kEach16>()
                             : launch.template operator()<Format::kE2M1, GroupEnds::kEach32>();
  if (p.each.format == Format::kI8) return launch.template operator()<Format::kI8>();
  if (p.each.format == Format::kE4M3) return launch.template operator()<Format::kE4M3>();
  return p.each.format == Format::kU4 ? launch.template operator()<Format::kU4>()
                                      : launch.template operator()<Format::kU4B8>();
}

}  // namespace intarsia::matmul::sm90
