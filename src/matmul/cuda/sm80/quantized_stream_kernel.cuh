// The streaming kernel of products with weights in codes, and which instance a plan asks for.
#pragma once
#include "src/matmul/cuda/formats.h"
#include "src/matmul/cuda/quantized_store.cuh"
#include "src/matmul/cuda/sm80/quantized.h"
#include "src/matmul/cuda/sm80/quantized_stream.cuh"

namespace intarsia::matmul {

// The sums of a task's rows and columns go to shared memory: [k_warps, S::kRows, columns + 1].
template <class S, class RowOf>
__device__ __forceinline__ float* MultiplyCodes(const QuantizedParams& p, const QuantizedPlan& plan,
                                                const CodesTask& task, char* shared, RowOf row_of) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int k_warp = warp / plan.tile_warps, tile_warp = warp % plan.tile_warps;
  const StreamOfCodes<S> stream(p, task, tile_warp);
  const CodesStager<S, RowOf> stager(p, plan, task, row_of);
  const int first = task.begin + k_warp, stride = plan.k_warps;
  const auto buffer = [&](int chunk) {
    return StagedCodes<S>(shared + (chunk & 1) * plan.chunk_bytes, plan, task.rows);
  };
  StreamedProduct<S> product(task.rows, buffer(0).pitch, tile_warp, OpaqueZero(p));
  // What all warps wait for comes first.
  const int first_end = min(task.begin + plan.chunk_stages, task.end);
  stager.Issue(buffer(0), task.begin, first_end);
  StreamCodesPart<S> parts[S::kStages];
#pragma unroll
  for (int j = 0; j < S::kStages; ++j)
    if (first + j * stride < task.end) stream.Load(parts[j], first + j * stride);
  // A chunk ahead of the one at hand, of which there is none at first.
  for (int begin = task.begin - plan.chunk_stages, chunk = -1;;
       begin += plan.chunk_stages, ++chunk) {
    const int end = min(begin + plan.chunk_stages, task.end);
    const int next_end = min(end + plan.chunk_stages, task.end);
    if (chunk >= 0 && end < task.end) stager.Issue(buffer(chunk + 1), end, next_end);
    if (chunk >= 0) {
      const StagedCodes<S> staged = buffer(chunk);
      for (int i = begin + k_warp; i < end; i += S::kStages * stride) {
#pragma unroll
        for (int j = 0; j < S::kStages; ++j) {
          const int at = i + j * stride, next = at + S::kStages * stride;
          if (at >= end) break;
          product.Add(staged, parts[j], at - begin);
          if (next < task.end) stream.Load(parts[j], next);
        }
      }
    }
    if (end >= task.end) break;
    cuda::CpAsyncWait<0>();
    stager.Finish(buffer(chunk + 1), end, next_end);
    __syncthreads();  // the next chunk is here, and nobody reads this one
  }
  __syncthreads();
  auto* const sums = reinterpret_cast<float*>(shared);
  const int pitch = static_cast<int>(plan.cta_tiles() * kTileRows) + 1;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int n = 0; n < S::kRowBlocks; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = 8 * n + lane % 4 * 2 + e % 2;
        const int column = tile_warp * 32 + lane / 4 * 4 + 2 * half + e / 2;
        sums[(k_warp * S::kRows + row) * pitch + column] = product.Sums(half, n)[e];
      }
    }
  }
  return sums;
}

// Grid: tiles of columns, tiles of rows, splits, which are a cluster.
template <class S>
__global__ void __launch_bounds__(32 * kMostWarps, S::kMinBlocks)
    StreamCodesKernel(const __grid_constant__ QuantizedParams p,
                      const __grid_constant__ QuantizedPlan plan) {
  extern __shared__ __align__(128) char shared[];
  constexpr int kColumns = S::kStageColumns;
  const int all = (static_cast<int>(p.k) + kColumns - 1) / kColumns;
  const int split = static_cast<int>(blockIdx.z), splits = cuda::HasClusters() ? plan.splits : 1;
  if (split >= splits) return;
  const int first_row = static_cast<int>(blockIdx.y) * S::kRows;
  const CodesTask task{.packed = p.packed,
                       .scales = p.scales,
                       .zeros = p.zeros,
                       .first_tile = blockIdx.x * plan.cta_tiles(),
                       .rows = min(S::kRows, static_cast<int>(p.m) - first_row),
                       .begin = all * split / splits,
                       .end = all * (split + 1) / splits};
  cuda::AwaitPrevious();
  cuda::LetNextBegin();
  const auto* const x = static_cast<const typename S::T*>(p.x) + first_row * p.k;
  float* const sums =
      MultiplyCodes<S>(p, plan, task, shared, [&](int row) { return x + row * p.k; });
  StoreSums<S>(p, plan, sums, first_row, task.first_tile * kTileRows);
}

template <class S>
inline const cuda::Kernel kStreamCodesKernel("StreamCodesKernel",
                                             reinterpret_cast<const void*>(&StreamCodesKernel<S>),
                                             kMostSharedBytes);

template <class S>
Status LaunchStream(const QuantizedParams& p, const QuantizedPlan& plan,
                    const CudaContext& context) {
  cuda::LaunchConfig config = ConfigOf(p, plan);
  config.overlaps_previous = true;
  return cuda::Launch(context, kStreamCodesKernel<S>, config, p, plan);
}

template <DType kType, Format kFormat, bool kWide>
Status LaunchStreamRows(const QuantizedParams& p, const QuantizedPlan& plan,
                        const CudaContext& context) {
  switch (plan.shape.rows) {
    case 8:
      return LaunchStream<StreamCodesConfig<kType, kFormat, kWide, 8>>(p, plan, context);
    case 16:
      return LaunchStream<StreamCodesConfig<kType, kFormat, kWide, 16>>(p, plan, context);
    default:
      return LaunchStream<
          StreamCodesConfig<kType, kFormat, kWide,
                            StreamMostRows(kFormat, kWide ? QuantizedKernelKind::kWideStream
                                                          : QuantizedKernelKind::kStream)>>(
          p, plan, context);
  }
}

template <DType kType, Format kFormat>
Status LaunchStreamFormat(const QuantizedParams& p, const QuantizedPlan& plan,
                          const CudaContext& context) {
  if constexpr (kFormat != Format::kE2M1) {
    if (plan.kernel == QuantizedKernelKind::kWideStream)
      return LaunchStreamRows<kType, kFormat, true>(p, plan, context);
  }
  return LaunchStreamRows<kType, kFormat, false>(p, plan, context);
}

template <DType kType>
Status LaunchStreamOf(const QuantizedParams& p, const QuantizedPlan& plan,
                      const CudaContext& context) {
  return DispatchStreamed(p.format, [&]<Format kFormat>() {
    return LaunchStreamFormat<kType, kFormat>(p, plan, context);
  });
}

}  // namespace intarsia::matmul
