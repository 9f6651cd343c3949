// Partial results of tasks that were cut into pieces (prefill_line.h), and how they become one.
// With lse_i and out_i the results of the disjoint sets of keys i,
//   lse = ln (e^sink + sum_i e^lse_i),   out = sum_i e^(lse_i - lse) out_i.
#pragma once
#include "src/attention/attention.h"
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

// Behind a launch whose CTAs are `slices`; it may begin while that one ends.
Status LaunchCombinePieces(const Params& params, const Pieces& pieces, int64_t slices,
                           const CudaContext& context);

}  // namespace intarsia::attention::sm90
