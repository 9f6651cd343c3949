// Partial results of split-KV decode and how they become one. With lse_i and out_i the results of
// the disjoint sets of keys i,
//   lse = ln sum_i e^lse_i,   out = sum_i e^(lse_i - lse) out_i
// (Milakov and Gimelshein 2018, arXiv:1805.02867.) Inside, lse is to base 2.
#pragma once
#include "src/attention/decode_plan.h"
#include "src/attention/tile.cuh"
#include "src/core/cuda/ptx.cuh"

namespace intarsia::attention::decode {

// What CombineKernel must know of an item.
struct Record {
  int pieces = 0;  // 0: nothing to combine
  int first_slice = 0, first_token = 0, first_row = 0, rows = 0;
  int unused[3] = {};
};
static_assert(sizeof(Record) == PieceLayout::kRecordFloats * sizeof(float));

// A CTA has at most two partial results: of an item that an earlier slice began (place 0), and of
// one that later slices go on with (place 1).
__device__ __forceinline__ float* PartialAt(const Params& p, const PieceLayout& layout, int slice,
                                            int kv_head, int place) {
  const int64_t cta = int64_t{slice} * p.cache.num_kv_heads + kv_head;
  return p.workspace + (cta * PieceLayout::kPiecesPerCta + place) * layout.floats();
}
__device__ __forceinline__ Record& RecordOf(float* partial, const PieceLayout& layout) {
  return *reinterpret_cast<Record*>(partial + layout.record_offset());
}

// The weight of a result in a sum relative to `reference`; 0 for keys that the row does not see.
__device__ __forceinline__ float Weight(float lse, float reference) {
  return lse == -INFINITY ? 0.0f : cuda::Exp2(lse - reference);
}

// Four columns of a row of out.
template <class T>
__device__ __forceinline__ void StoreColumns(T* out, const float (&o)[4], float factor,
                                             bool aligned) {
  cuda::Vec<T, 4 * sizeof(T)> values;
#pragma unroll
  for (int i = 0; i < 4; ++i) values.at[i] = cuda::FromFloat<T>(o[i] * factor);
  if (aligned) {
    *reinterpret_cast<decltype(values)*>(out) = values;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = values.at[i];
  }
}

// From sums of weights relative to `reference` to what the op returns.
__device__ __forceinline__ float Inverse(float weights) {
  return weights > 0 ? __fdividef(1.0f, weights) : 0.0f;
}
__device__ __forceinline__ float LseOf(float weights, float reference) {
  return weights > 0 ? reference + log2f(weights) : -INFINITY;
}

inline constexpr int kCombineThreads = 128;

// Combines the items of several pieces. Grid (hk, slices, 2): the CTAs that an item's pieces came
// from share its output among them, in vectors of four columns, so the work is as even as the
// slices.
template <DType kType>
__global__ void __launch_bounds__(kCombineThreads)
    CombineKernel(const __grid_constant__ Params p, const __grid_constant__ PieceLayout layout,
                  bool aligned) {
  using T = cuda::DeviceT<kType>;
  const int kv_head = blockIdx.x, slice = blockIdx.y, lane = threadIdx.x % 32;
  const Record item = RecordOf(PartialAt(p, layout, slice, kv_head, blockIdx.z), layout);
  if (item.pieces == 0) return;
  const float* const first_piece = PartialAt(p, layout, item.first_slice, kv_head, 1);
  const float* const other_pieces = PartialAt(p, layout, item.first_slice, kv_head, 0);
  const int64_t piece_stride = PartialAt(p, layout, 1, 0, 0) - PartialAt(p, layout, 0, 0, 0);

  // `lanes` lanes, `vectors_a_warp` apart, take the pieces of a vector in turn: as many as leave no
  // warp idle, since all there is to wait for is one load after the other.
  const int d = static_cast<int>(p.head_dim), row_vectors = d / 4,
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
    float reference = -INFINITY, weights = 0.0f, o[4] = {};
#pragma unroll 4
    for (int piece = lane / vectors_a_warp; piece < item.pieces; piece += lanes) {
      const float* const from = piece == 0 ? first_piece : other_pieces + piece * piece_stride;
      const float lse = from[layout.lse_offset() + row];
      const float4 part = *reinterpret_cast<const float4*>(from + row * d + column);
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
    const RowPlace to =
        PlaceOf(p, {.tokens = {item.first_token, 0}}, kv_head, item.first_row + row);
    StoreColumns(static_cast<T*>(p.out) + (to.token * p.num_heads + to.head) * d + column, o,
                 Inverse(weights), aligned);
    if (p.lse && column == 0) p.lse[to.head * p.num_tokens + to.token] = LseOf(weights, top) * kLn2;
  }
}

}  // namespace intarsia::attention::decode
