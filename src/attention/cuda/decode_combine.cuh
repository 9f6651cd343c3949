// Partial results of split-KV decode and how they become one. With lse_i and out_i the results of
// the disjoint sets of keys i,
//   lse = ln sum_i e^lse_i,   out = sum_i e^(lse_i - lse) out_i
// (Milakov and Gimelshein 2018, arXiv:1805.02867.) Inside, lse is to base 2.
#pragma once
#include "src/attention/cuda/rows.cuh"
#include "src/attention/cuda/scores.cuh"
#include "src/attention/decode_plan.h"
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

// From sums of weights relative to `reference` to what the op returns; NaN stays NaN.
__device__ __forceinline__ float Inverse(float weights) {
  return weights == 0.0f ? 0.0f : __fdividef(1.0f, weights);
}
__device__ __forceinline__ float LseOf(float weights, float reference) {
  return weights == 0.0f ? -INFINITY : reference + log2f(weights);
}

// Combines the items of several pieces; `p` with its heads split, as the kernel before it had it.
Status LaunchCombine(const Params& p, const PieceLayout& layout, int64_t num_slices, bool aligned,
                     const CudaContext& context);

}  // namespace intarsia::attention::decode
