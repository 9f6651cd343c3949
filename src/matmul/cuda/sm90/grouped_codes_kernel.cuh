// The kernel of grouped_codes.cuh, and its launch.
#pragma once
#include "src/core/cuda/launch.h"
#include "src/matmul/cuda/sm90/grouped_codes.cuh"
#include "src/matmul/cuda/sm90/grouped_codes.h"

namespace intarsia::matmul::sm90 {

// Grid: any; CTAs share the tasks.
template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kCtas)
    GroupedCodesSm90Kernel(const __grid_constant__ QuantizedGroupsParams p,
                           const __grid_constant__ GroupedCodesCut cut,
                           const __grid_constant__ GroupedCodesMaps maps) {
  auto& shared = *reinterpret_cast<GroupedCodesShared<S>*>(cuda::DynamicShared());
  if (threadIdx.x == 0) {
    shared.of_stages.Init(1, 32 * S::kWarps);
    shared.ring.Init(32, 32 * S::kWarps);
    cuda::PublishBarriers();
    cuda::PrefetchMap(maps.codes), cuda::PrefetchMap(maps.scales);
    if constexpr (S::kZeroBytes > 0) cuda::PrefetchMap(maps.zeros);
    if constexpr (S::kOuters) cuda::PrefetchMap(maps.outer_scales);
    if constexpr (S::kOuters && S::kMinimums) cuda::PrefetchMap(maps.outer_zeros);
  }
  __syncthreads();
  if (p.await != Await::kRows) cuda::AwaitPrevious();
  cuda::LetNextBegin();
  // The same in all lanes, and by this the compiler knows it.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp == S::kWarps)
    GroupedCodesProducer<S>(p, maps, cut, shared).Run();
  else
    GroupedCodesConsumer<S>(p, cut, shared, warp).Run();
}

template <class S>
inline const cuda::Kernel kGroupedCodesSm90Kernel(
    "GroupedCodesSm90Kernel", reinterpret_cast<const void*>(&GroupedCodesSm90Kernel<S>),
    static_cast<int>(sizeof(GroupedCodesShared<S>)), cuda::kHopper);

template <class S>
Status LaunchGroupsHopper(const QuantizedGroupsParams& p, const QuantizedPlan& plan,
                          const CudaContext& context) {
  static_assert(cuda::HaveRoom(cuda::kHopper, S::kCtas, sizeof(GroupedCodesShared<S>)));
  const GroupedCodesCut cut = GroupedCodesCut::Of<S>(p, plan);
  GroupedCodesMaps maps;
  INTARSIA_RETURN_IF_ERROR(MakeCodesMaps<S>(p, plan, cut, maps));
  const int64_t tasks = MostTiles(p.groups.m, p.groups.count, S::kRows) * int64_t{cut.column_tiles};
  const cuda::LaunchConfig config{
      .grid = {std::min<int64_t>(tasks, int64_t{S::kCtas} * context.device->sms)},
      .block = dim3(S::kThreads),
      .shared_bytes = static_cast<int>(sizeof(GroupedCodesShared<S>)),
      .overlaps_previous = p.await != Await::kNothing};
  return cuda::Launch(context, kGroupedCodesSm90Kernel<S>, config, p, cut, maps);
}

template <DType kType, Format kFormat, GroupEnds kEnds, bool kInF16>
Status LaunchGroupedCodesShape(const QuantizedGroupsParams& p, const QuantizedPlan& plan,
                               const CudaContext& context) {
  const auto launch = [&]<QuantizedShape kShape>() {
    return LaunchGroupsHopper<GroupedCodesConfig<kType, kFormat, kEnds, kInF16, kShape>>(p, plan,
                                                                                         context);
  };
  const auto of_rows = [](int rows) { return GroupsHopperShape(rows, kFormat, kInF16); };
  if (plan.shape.rows == 32) return launch.template operator()<of_rows(32)>();
  if (plan.shape.rows == 16) return launch.template operator()<of_rows(16)>();
  if (plan.shape == kFewUnits) return launch.template operator()<kFewUnits>();
  return launch.template operator()<of_rows(8)>();
}

template <DType kType>
Status LaunchGroupsHopperOf(const QuantizedGroupsParams& p, const QuantizedPlan& plan,
                            const CudaContext& context) {
  const auto launch = [&]<Format kFormat, GroupEnds kEnds, bool kInF16 = false>() {
    return LaunchGroupedCodesShape<kType, kFormat, kEnds, kInF16>(p, plan, context);
  };
  const auto with_minimums = [&]<Format kFormat>() {
    return p.each.scales.outer ? launch.template operator()<kFormat, GroupEnds::kEach32>()
                               : launch.template operator()<kFormat, GroupEnds::kEach32, true>();
  };
  using enum GroupEnds;
  const GroupEnds ends = GroupEndsOf(p.each.group);
  switch (p.each.format) {
    case Format::kE2M1:
      return ends == kEach16 ? launch.template operator()<Format::kE2M1, kEach16>()
                             : launch.template operator()<Format::kE2M1, kEach32>();
    case Format::kU4:
      return ends == kEach128 ? launch.template operator()<Format::kU4, kEach128>()
                              : with_minimums.template operator()<Format::kU4>();
    case Format::kU5:
      return with_minimums.template operator()<Format::kU5>();
    case Format::kU5B16:
      return launch.template operator()<Format::kU5B16, kEach32>();
    case Format::kU6B32:
      return launch.template operator()<Format::kU6B32, kEach16>();
    case Format::kI8:
      return ends == kEach128 ? launch.template operator()<Format::kI8, kEach128>()
                              : launch.template operator()<Format::kI8, kEach32>();
    case Format::kE4M3:
      return launch.template operator()<Format::kE4M3, kEach128>();
    default:
      return ends == kEach128 ? launch.template operator()<Format::kU4B8, kEach128>()
                              : launch.template operator()<Format::kU4B8, kEach32>();
  }
}

}  // namespace intarsia::matmul::sm90
