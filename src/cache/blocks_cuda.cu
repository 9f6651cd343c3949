// to[o, to_blocks[i]] = from[o, from_blocks[i]] for each pair i and each o.
#include "src/cache/blocks.h"
#include "src/core/cuda/launch.h"
#include "src/core/cuda/vec.cuh"
#include "src/core/round.h"

namespace intarsia::cache {
namespace {

constexpr int kThreads = 256;
constexpr int kCellsPerThread = 4;  // all on their way at once

// Grid: pairs, parts of a block, o. `cells`: of a block.
template <class Cell>
__global__ void __launch_bounds__(kThreads) CopyBlocksKernel(BlockCopies copies, int64_t cells) {
  int64_t from = 0, to = 0;
  if (!copies.Find(blockIdx.x, from, to)) return;
  const Cell* source =
      static_cast<const Cell*>(copies.from) + (blockIdx.z * copies.num_from + from) * cells;
  Cell* target = static_cast<Cell*>(copies.to) + (blockIdx.z * copies.num_to + to) * cells;
  const int64_t first = int64_t{blockIdx.y} * (kThreads * kCellsPerThread) + threadIdx.x;
  Cell held[kCellsPerThread] = {};
#pragma unroll
  for (int i = 0; i < kCellsPerThread; ++i)
    if (first + i * kThreads < cells) held[i] = source[first + i * kThreads];
#pragma unroll
  for (int i = 0; i < kCellsPerThread; ++i)
    if (first + i * kThreads < cells) target[first + i * kThreads] = held[i];
}

template <class Cell>
const cuda::Kernel kCopyBlocksKernel("CopyBlocksKernel",
                                     reinterpret_cast<const void*>(&CopyBlocksKernel<Cell>));

}  // namespace

Status Launch(const CudaContext& context, const BlockCopies& copies) {
  const bool wide = cuda::AllAligned16(copies.block_bytes, copies.from, copies.to);
  const int64_t cells = wide ? copies.block_bytes / 16 : copies.block_bytes;
  const cuda::LaunchConfig config{
      {copies.pairs, CeilDiv<int64_t>(cells, kThreads * kCellsPerThread), copies.outer},
      dim3(kThreads)};
  return cuda::Launch(context, wide ? kCopyBlocksKernel<uint4> : kCopyBlocksKernel<char>, config,
                      copies, cells);
}

}  // namespace intarsia::cache
