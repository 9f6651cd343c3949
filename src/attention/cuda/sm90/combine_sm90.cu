#include "src/attention/cuda/rows.cuh"
#include "src/attention/cuda/scores.cuh"
#include "src/attention/cuda/sm90/combine.h"
#include "src/core/cuda/launch.h"
#include "src/core/cuda/ptx.cuh"

namespace intarsia::attention::sm90 {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// Grid (slices, places): the slices that have a task's pieces share its rows, a warp a row.
__global__ void __launch_bounds__(kThreads)
    CombinePiecesKernel(const __grid_constant__ Params p, const __grid_constant__ Pieces pieces) {
  cuda::AwaitPrevious();
  const int slice = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const PieceRecord task = pieces.RecordAt(slice, blockIdx.y);
  if (task.pieces < 2) return;
  const int group = GroupSize(p), dv = static_cast<int>(p.cache.v_head_dim);
  // Piece 0 goes on, the others were begun earlier; some may be empty.
  const auto place_of = [](int piece) { return PlaceOfPiece(piece == 0); };
  const auto lse_of = [&](int piece, int row) {
    const int at = task.first_slice + piece;
    if (pieces.RecordAt(at, place_of(piece)).tiles == 0) return -INFINITY;
    return pieces.At(at, place_of(piece))[pieces.room.lse_offset() + row];
  };
  for (int row = (slice - task.first_slice) * kWarps + warp; row < task.rows;
       row += task.pieces * kWarps) {
    const int64_t token = task.first_token + row / group, head = task.kv_head * group + row % group;
    const float sink = p.sinks ? p.sinks[head] : -INFINITY;
    float top = sink;
    for (int piece = lane; piece < task.pieces; piece += 32) top = fmaxf(top, lse_of(piece, row));
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, distance));
    const float base = top == -INFINITY ? 0.0f : top;
    float weights = lane == 0 ? __expf(sink - base) : 0.0f;
    for (int piece = lane; piece < task.pieces; piece += 32)
      weights += __expf(lse_of(piece, row) - base);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      weights += __shfl_xor_sync(0xffffffffu, weights, distance);
    const float inverse = weights > 0 ? 1.0f / weights : 0.0f;
    for (int column = lane * 4; column < dv; column += 128) {
      float o[4] = {};
#pragma unroll 4
      for (int piece = 0; piece < task.pieces; ++piece) {
        const float weight = __expf(lse_of(piece, row) - base);
        if (weight == 0.0f) continue;
        const float4 part =
            *reinterpret_cast<const float4*>(pieces.At(task.first_slice + piece, place_of(piece)) +
                                             int64_t{row} * pieces.room.columns + column);
        o[0] += weight * part.x, o[1] += weight * part.y;
        o[2] += weight * part.z, o[3] += weight * part.w;
      }
      StoreColumns(p.out, p.out_dtype, (token * p.num_heads + head) * dv + column, o, inverse,
                   true);
    }
    if (p.lse && lane == 0)
      p.lse[head * p.num_tokens + token] = weights > 0 ? base + logf(weights) : -INFINITY;
  }
}

const cuda::Kernel kCombinePieces("CombinePiecesKernel",
                                  reinterpret_cast<const void*>(&CombinePiecesKernel), 0,
                                  cuda::kHopper);

}  // namespace

Status LaunchCombinePieces(const Params& p, const Pieces& pieces, int64_t slices,
                           const CudaContext& context) {
  return cuda::Launch(
      context, kCombinePieces,
      {.grid = {slices, PieceRoom::kPlaces}, .block = dim3(kThreads), .overlaps_previous = true}, p,
      pieces);
}

}  // namespace intarsia::attention::sm90
