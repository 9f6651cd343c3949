// Partial results of tasks that were cut into pieces (prefill_line.h), and how they become one.
// With lse_i and out_i the results of the disjoint sets of keys i,
//   lse = ln (e^sink + sum_i e^lse_i),   out = sum_i e^(lse_i - lse) out_i.
#pragma once
#include "src/attention/attention.h"
#include "src/attention/cuda/fragments.cuh"
#include "src/attention/cuda/rows.cuh"
#include "src/attention/prefill_line.h"

namespace intarsia::attention::sm90 {

// Where slices leave their pieces, in f32: out [rows, columns] and lse [rows] of each, and its
// record. Without room no task is cut.
struct Pieces {
  float* data = nullptr;
  PieceRoom room;
  INTARSIA_HOST_DEVICE float* At(int slice, int place) const {
    return data + (int64_t{slice} * PieceRoom::kPlaces + place) * room.floats();
  }
  INTARSIA_HOST_DEVICE PieceRecord& RecordAt(int slice, int place) const {
    return *reinterpret_cast<PieceRecord*>(At(slice, place) + room.record_offset());
  }
};

// When all pieces are there: the slices that have a task's pieces share its rows, by `warps` of the
// CTA, of which this is number `warp`. A warp takes kRows at once, since each waits for what it
// reads; kLanes have the weights of a row's pieces, and all its columns. kDv: as in Shape.
template <int kDv>
__device__ __forceinline__ void CombinePieces(const Params& p, const Pieces& pieces, int place,
                                              int warp, int warps) {
  constexpr int kRows = kDv > 128 ? 2 : 4, kLanes = 32 / kRows,
                kGroups = (kDv + 127) / 128;  // of 4 columns a lane
  const int slice = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % 32;
  const PieceRecord task = pieces.RecordAt(slice, place);
  if (task.pieces < 2) return;
  const int dv = static_cast<int>(p.cache.v_head_dim);
  // Piece 0 goes on, the others were begun earlier; some may be empty.
  const auto place_of = [](int piece) { return PlaceOfPiece(piece == 0); };
  const auto lse_of = [&](int piece, int row) {
    const int at = task.first_slice + piece;
    if (piece >= task.pieces || row >= task.rows) return -INFINITY;
    if (pieces.RecordAt(at, place_of(piece)).tiles == 0) return -INFINITY;
    return pieces.At(at, place_of(piece))[pieces.room.lse_offset() + row];
  };
  const auto over_pieces = [](float x, auto reduce) {
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2)
      x = reduce(x, __shfl_xor_sync(0xffffffffu, x, distance));
    return x;
  };
#pragma unroll 1
  for (int first_row = ((slice - task.first_slice) * warps + warp) * kRows; first_row < task.rows;
       first_row += task.pieces * warps * kRows) {
    const int own_row = first_row + lane / kLanes, token = TokenOfRow(p, own_row);
    const int64_t head = task.kv_head * p.group + own_row - token * p.group;
    const bool exists = own_row < task.rows;
    const float sink = p.sinks && exists ? p.sinks[head] : -INFINITY;
    float top = sink;
#pragma unroll 1
    for (int piece = lane % kLanes; piece < task.pieces; piece += kLanes)
      top = fmaxf(top, lse_of(piece, own_row));
    top = over_pieces(top, [](float x, float y) { return fmaxf(x, y); });
    const float base = BaseOf(top);
    float weights = lane % kLanes ? 0.0f : __expf(sink - base);
    float o[kRows][kGroups][4] = {};
#pragma unroll 1
    for (int first = 0; first < task.pieces; first += kLanes) {
      const float weight = __expf(lse_of(first + lane % kLanes, own_row) - base);
      weights += weight;
#pragma unroll 2
      for (int piece = first; piece < min(first + kLanes, task.pieces); ++piece) {
        const float* const from = pieces.At(task.first_slice + piece, place_of(piece)) +
                                  first_row * pieces.room.columns + lane * 4;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const float by = __shfl_sync(0xffffffffu, weight, r * kLanes + piece - first);
#pragma unroll
          for (int g = 0; g < kGroups; ++g) {
            float4 part{};  // what is not there may be a NaN
            if (by != 0.0f && g * 128 + lane * 4 < dv)
              part = *reinterpret_cast<const float4*>(from + r * pieces.room.columns + g * 128);
            o[r][g][0] += by * part.x, o[r][g][1] += by * part.y;
            o[r][g][2] += by * part.z, o[r][g][3] += by * part.w;
          }
        }
      }
    }
    weights = over_pieces(weights, [](float x, float y) { return x + y; });
    const float own_inverse = weights == 0.0f ? 0.0f : 1.0f / weights;  // NaN stays NaN
    const int64_t own_out = ((int64_t{task.first_token} + token) * p.num_heads + head) * dv;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float inverse = __shfl_sync(0xffffffffu, own_inverse, r * kLanes);
      const int64_t out = __shfl_sync(0xffffffffu, own_out, r * kLanes);
      if (first_row + r >= task.rows) break;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        if (g * 128 + lane * 4 < dv)
          StoreColumns(p.out, p.out_dtype, out + g * 128 + lane * 4, o[r][g], inverse, true);
      }
    }
    if (p.lse && exists && lane % kLanes == 0)
      p.lse[head * p.num_tokens + task.first_token + token] =
          weights == 0.0f ? -INFINITY : base + logf(weights);
  }
}

}  // namespace intarsia::attention::sm90
