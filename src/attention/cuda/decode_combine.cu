#include "src/attention/cuda/decode_combine.cuh"
#include "src/core/cuda/launch.h"

namespace intarsia::attention::decode {
namespace {

constexpr int kCombineThreads = 128;

// Combines the items of several pieces. Grid (hk, slices, 2): the CTAs that an item's pieces came
// from share its output among them, in vectors of four columns, so the work is as even as the
// slices.
__global__ void __launch_bounds__(kCombineThreads)
    CombineKernel(const __grid_constant__ Params p, const __grid_constant__ PieceLayout layout,
                  bool aligned) {
  cuda::AwaitPrevious();
  const int kv_head = blockIdx.x, slice = blockIdx.y, lane = threadIdx.x % 32;
  const Record item = RecordOf(PartialAt(p, layout, slice, kv_head, blockIdx.z), layout);
  if (item.pieces == 0) return;
  const float* const first_piece = PartialAt(p, layout, item.first_slice, kv_head, 1);
  const float* const other_pieces = PartialAt(p, layout, item.first_slice, kv_head, 0);
  const int64_t piece_stride = PartialAt(p, layout, 1, 0, 0) - PartialAt(p, layout, 0, 0, 0);

  // `lanes` lanes, `vectors_a_warp` apart, take the pieces of a vector in turn: as many as leave no
  // warp idle, since all there is to wait for is one load after the other.
  const int dv = static_cast<int>(p.cache.v_head_dim), row_vectors = dv / 4,
            vectors = item.rows * row_vectors;
  int lanes = 1;
  while (lanes < 16 && lanes < item.pieces && lanes * vectors < item.pieces * kCombineThreads)
    lanes *= 2;
  const int vectors_a_warp = 32 / lanes,
            step = item.pieces * (kCombineThreads / 32) * vectors_a_warp;
  const int warp = (slice - item.first_slice) * (kCombineThreads / 32) + threadIdx.x / 32;
  for (int first = warp * vectors_a_warp; first < vectors; first += step) {
    const int vector = min(first + lane % vectors_a_warp, vectors - 1);
    const int row = vector / row_vectors, column = vector % row_vectors * 4;
    const RowPlace to =
        PlaceOf(p, {.tokens = {item.first_token, 0}}, kv_head, item.first_row + row);
    // The sink is one more piece, which the lane of the first one begins with.
    float reference = lane < vectors_a_warp ? SinkOf(p, to.head) : -INFINITY;
    float weights = Weight(reference, reference), o[4] = {};
#pragma unroll 4
    for (int piece = lane / vectors_a_warp; piece < item.pieces; piece += lanes) {
      const float* const from = piece == 0 ? first_piece : other_pieces + piece * piece_stride;
      const float lse = from[layout.lse_offset() + row];
      const float4 part = *reinterpret_cast<const float4*>(from + row * dv + column);
      const float top = fmaxf(reference, lse), kept = Weight(reference, top),
                  weight = Weight(lse, top);
      reference = top;
      weights = weights * kept + weight;
      o[0] = o[0] * kept + weight * part.x, o[1] = o[1] * kept + weight * part.y;
      o[2] = o[2] * kept + weight * part.z, o[3] = o[3] * kept + weight * part.w;
    }
    float top = reference;
    for (int distance = 16; distance >= vectors_a_warp; distance /= 2)
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, distance));
    const float kept = Weight(reference, top);
    weights *= kept;
    for (float& x : o) x *= kept;
    for (int distance = 16; distance >= vectors_a_warp; distance /= 2) {
      weights += __shfl_xor_sync(0xffffffffu, weights, distance);
#pragma unroll
      for (float& x : o) x += __shfl_xor_sync(0xffffffffu, x, distance);
    }
    if (lane >= vectors_a_warp || first + lane >= vectors) continue;
    StoreColumns(p.out, p.out_dtype, (to.token * p.num_heads + to.head) * dv + column, o,
                 Inverse(weights), aligned);
    if (p.lse && column == 0) p.lse[to.head * p.num_tokens + to.token] = LseOf(weights, top) * kLn2;
  }
}

const cuda::Kernel kCombineKernel("CombineKernel", reinterpret_cast<const void*>(&CombineKernel));

}  // namespace

Status LaunchCombine(const Params& p, const PieceLayout& layout, int64_t num_slices, bool aligned,
                     const CudaContext& context) {
  const cuda::Grid grid{p.num_kv_heads(), num_slices, 2};
  return cuda::Launch(context, kCombineKernel,
                      {.grid = grid, .block = dim3(kCombineThreads), .overlaps_previous = true}, p,
                      layout, aligned);
}

}  // namespace intarsia::attention::decode
