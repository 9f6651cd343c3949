// A product of codes of 8 bits for Hopper (scaled.h): wgmma fed by TMA.
//
// A CTA stays on its multiprocessor and computes one tile after another. One warp has the copy
// engine fetch blocks of x and of w. Two warpgroups multiply: while one of them waits for its
// products, or scales and adds them up, the tensor cores work for the other. So the sum of a block
// goes to registers of its own, and f32 arithmetic adds up blocks, as in DeepSeek-AI 2024,
// arXiv:2412.19437, section 3.3.2. Sums of int8 are exact: without scales of blocks they stay where
// they are until the CTA's last block. Where tiles are few, CTAs of a cluster share the blocks of
// each sum.
#pragma once
#include <algorithm>
#include <array>

#include "src/core/cuda/launch.h"
#include "src/core/cuda/tensor_map.h"
#include "src/matmul/cuda/sm90/scaled.h"
#include "src/matmul/cuda/sm90/scaled_consumer.cuh"

namespace intarsia::matmul::sm90 {

// Passed to the kernel by value.
struct ScaledMaps {
  CUtensorMap x, w;  // column, row
};

// By one thread.
template <class S>
__device__ __forceinline__ void CopyBlocks(const ScaledWork<S>& work, const ScaledMaps& maps,
                                           ScaledShared<S>& shared) {
  cuda::RingPlace<S::kStages> place;
  work.ForEachTile([&](int row, int column) {
    for (int b = work.begin; b < work.end; ++b, place.Next()) {
      shared.empty[place.index].Wait(place.parity ^ 1);
      cuda::Barrier& full = shared.full[place.index];
      full.ArriveExpecting(S::kBytesX + S::kBytesW);
      const int32_t of_x[] = {b * kScaleBlock, row}, of_w[] = {b * kScaleBlock, column};
      cuda::CopyBox(shared.x[place.index], maps.x, of_x, full);
      cuda::CopyBox(shared.w[place.index], maps.w, of_w, full);
    }
  });
}

// Grid: any multiple of `splits`, which is the size of clusters. CTAs share the tiles; with more
// than one split there are as many clusters as tiles.
template <class S, DType kType, bool kScaled>
__global__ void __launch_bounds__(S::kThreads, S::kCtas)
    ScaledSm90Kernel(const __grid_constant__ ScaledParams p,
                     const __grid_constant__ ScaledMaps maps, int splits) {
  static_assert(sizeof(ScaledShared<S>) <= S::kSharedBytes);
  extern __shared__ __align__(cuda::kSwizzleAtomBytes) char bytes[];
  auto& shared = *reinterpret_cast<ScaledShared<S>*>(bytes);
  // The same in all lanes, and by this the compiler knows it.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      shared.full[i].Init(1);
      shared.empty[i].Init(S::kConsumers);
    }
    cuda::PublishBarriers();
    cuda::PrefetchMap(maps.x);
    cuda::PrefetchMap(maps.w);
  }
  cuda::AwaitPrevious();
  cuda::LetNextBegin();  // which finds room where a CTA of this one has ended
  __syncthreads();
  const ScaledWork<S> work(p, splits);
  if (warp < 4) {
    cuda::ReleaseRegisters<kProducerRegisters>();
    if (threadIdx.x == 0) CopyBlocks<S>(work, maps, shared);
    __syncwarp();
    if (splits > 1) cuda::ClusterSync();
  } else {
    cuda::TakeRegisters<S::kConsumerRegisters>();
    ScaledConsumer<S, kType, kScaled>(p, work, shared, warp / 4 - 1, splits).Run();
  }
  if (splits > 1) cuda::ClusterSyncReads();
}

template <class S, DType kType, bool kScaled>
inline const cuda::Kernel kScaledKernel(
    "ScaledSm90Kernel", reinterpret_cast<const void*>(&ScaledSm90Kernel<S, kType, kScaled>),
    S::kSharedBytes, cuda::kHopper);

// How many CTAs share the blocks of each sum, so that all multiprocessors have work.
template <class S>
int SplitsOf(const ScaledParams& p, int64_t tiles, const cuda::Device& device) {
  if (S::kConsumers > 1) return 1;
  int splits = 1;
  while (splits < 4 && tiles * splits * 2 <= int64_t{S::kCtas} * device.sms &&
         p.blocks() >= int64_t{splits} * 2 * S::kStages)
    splits *= 2;
  return splits;
}

template <class S, DType kType, bool kScaled>
Status LaunchScaledShape(const ScaledParams& p, const CudaContext& context) {
  using cuda::MapAxis;
  ScaledMaps maps;
  const std::array<MapAxis, 1> of_x{{{p.m, p.k, S::kRows}}}, of_w{{{p.n, p.k, S::kColumns}}};
  INTARSIA_RETURN_IF_ERROR(cuda::MakePanelMap(p.dtype, p.x, p.k, of_x, maps.x));
  INTARSIA_RETURN_IF_ERROR(cuda::MakePanelMap(p.dtype, p.w, p.k, of_w, maps.w));
  const int64_t tiles = TilesOf<S>(p).count();
  const int splits = SplitsOf<S>(p, tiles, *context.device);
  const int64_t ctas = splits > 1
                           ? tiles * splits
                           : std::min<int64_t>(tiles, int64_t{S::kCtas} * context.device->sms);
  const cuda::LaunchConfig config{.grid = {ctas},
                                  .block = dim3(S::kThreads),
                                  .shared_bytes = S::kSharedBytes,
                                  .cluster = dim3(static_cast<unsigned>(splits)),
                                  .overlaps_previous = true};
  return cuda::Launch(context, kScaledKernel<S, kType, kScaled>, config, p, maps, splits);
}

template <DType kType>
Status LaunchScaledOf(const ScaledParams& p, const CudaContext& context) {
  const auto launch = [&]<class S>() {
    return p.has_blocks() ? LaunchScaledShape<S, kType, true>(p, context)
                          : LaunchScaledShape<S, kType, false>(p, context);
  };
  // The largest tiles, of which almost every multiprocessor has one.
  const int64_t enough = int64_t{3} * context.device->sms / 4;
  if (p.m > MiddleScaledShape::kRows && TilesOf<LargeScaledShape>(p).count() >= enough)
    return launch.template operator()<LargeScaledShape>();
  if (p.m > SmallScaledShape::kRows && TilesOf<MiddleScaledShape>(p).count() >= enough)
    return launch.template operator()<MiddleScaledShape>();
  return launch.template operator()<SmallScaledShape>();
}

}  // namespace intarsia::matmul::sm90
