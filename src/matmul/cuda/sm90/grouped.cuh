// Grouped products for Hopper: wgmma fed by TMA,
//   out[rows of a group, columns] = x[rows taken, :] w[group] + bias,
// or, with gates, the results of gates and ups among these columns.
//
// A CTA stays on its multiprocessor and computes one task after another: a tile of a group's rows
// and of columns. As many row tiles of a group as share columns of w in the L2 cache follow each
// other. wgmma multiplies w', [columns, sum], with x', [sum, rows]: its rows are whole tiles of
// columns, and its N follows the rows of the group in steps of 16. So a group with one row more
// than a tile costs a step more, where a tile with rows for M would cost all of itself.
//
// One warpgroup are the producers (producer.cuh), two are consumers (consumer.cuh).
#pragma once
#include <algorithm>
#include <array>

#include "src/core/cuda/launch.h"
#include "src/core/cuda/tensor_map.h"
#include "src/matmul/cuda/choose.h"
#include "src/matmul/cuda/sm90/consumer.cuh"
#include "src/matmul/cuda/sm90/grouped.h"
#include "src/matmul/cuda/sm90/producer.cuh"

namespace intarsia::matmul::sm90 {

// Grid: any; CTAs share the tasks.
template <class S, class T, bool kTransposed, bool kGated>
__global__ void __launch_bounds__(S::kThreads, 1)
    GroupedSm90Kernel(const __grid_constant__ GroupedParams p, const __grid_constant__ Maps maps) {
  auto& shared = *reinterpret_cast<Shared<S>*>(cuda::DynamicShared());
  RunRoles<S, T>(
      p, maps.x, shared, S::kConsumers, S::kWeightBytes, [&] { cuda::PrefetchMap(maps.w); },
      [&](char* to, const Unit& unit, int stage, cuda::Barrier& full) {
        CopyWeights<S, kTransposed, kGated>(p, maps, to, unit, stage * S::kDepth, full);
      },
      [&](int number) { Consumer<S, T, kTransposed, kGated>(p, shared, number).Run(); });
}

template <class S, class T, bool kTransposed, bool kGated>
inline const cuda::Kernel kKernel(
    "GroupedSm90Kernel",
    reinterpret_cast<const void*>(&GroupedSm90Kernel<S, T, kTransposed, kGated>), S::kSharedBytes,
    cuda::kHopper);

template <class S, class T, bool kTransposed, bool kGated = false>
Status LaunchShape(const GroupedParams& p, const CudaContext& context) {
  using cuda::MapAxis;
  Maps maps;
  const int64_t columns = kTransposed ? p.k : p.n, rows = kTransposed ? p.n : p.k;
  const std::array<MapAxis, 2> axes{
      {{rows, columns, kTransposed ? kBoxColumns<S, kGated> : S::kDepth},
       {p.groups.count, rows * columns}}};
  INTARSIA_RETURN_IF_ERROR(cuda::MakePanelMap(p.dtype, p.w, columns, axes, maps.w));
  const std::array<MapAxis, 1> of_x{{{p.x_rows, p.k, S::kBoxRows}}};
  INTARSIA_RETURN_IF_ERROR(cuda::MakePanelMap(p.dtype, p.x, p.k, of_x, maps.x));
  const int64_t tasks =
      MostTiles(p.m(), p.groups.count, S::kRows) * CeilDiv<int64_t>(p.n, S::kColumns);
  const int64_t ctas = std::min<int64_t>(tasks, context.device->sms);
  const cuda::LaunchConfig config{.grid = {ctas},
                                  .block = dim3(S::kThreads),
                                  .shared_bytes = S::kSharedBytes,
                                  .overlaps_previous = p.await != Await::kNothing};
  return cuda::Launch(context, kKernel<S, T, kTransposed, kGated>, config, p, maps);
}

template <DType kType>
Status LaunchGroupedOf(const GroupedParams& p, const CudaContext& context, int tile_rows) {
  using T = cuda::DeviceT<kType>;
  if (tile_rows == NarrowShape::kRows)
    return p.gating.is_there ? LaunchShape<NarrowShape, T, true, true>(p, context)
                             : LaunchShape<NarrowShape, T, true>(p, context);
  return p.transposed ? LaunchShape<GroupedShape, T, true>(p, context)
                      : LaunchShape<GroupedShape, T, false>(p, context);
}

}  // namespace intarsia::matmul::sm90
