// Which tile of rows a CTA of the prefill kernel computes, found from the lengths in device memory,
// so the host need not know them.
#pragma once
#include "src/attention/cuda/ragged.cuh"
#include "src/core/round.h"

namespace intarsia::attention::prefill {

// kRows packed rows of a sequence, from first_row on.
struct RowTile {
  bool exists = false;
  Sequence sequence;
  int first_row = 0;
  // If there is none: what is outside of all sequences, and that this is the share-th tile too
  // many.
  Padding padding;
  int share = 0;
};

// Finds tile number `index` of those of the sequences with at least min_packed_rows rows. The last
// tile of a sequence comes first: under a causal mask it is the longest one, and what starts late
// should be short.
template <int kRows>
__device__ __forceinline__ RowTile FindRowTile(const Params& p, int64_t min_packed_rows,
                                               int index) {
  const int group = GroupSize(p);
  const OwnedItem found = FindItem(p, index, [&](const Sequence& sequence) {
    const int rows = sequence.tokens.size() * group;
    return rows > 0 && rows >= min_packed_rows ? CeilDiv(rows, kRows) : 0;
  });
  return {.exists = found.exists,
          .sequence = found.sequence,
          .first_row = (found.count - 1 - found.number) * kRows,
          .padding = {FirstToken(p), found.end},
          .share = found.beyond};
}

// No lengths make more tiles: each sequence has at most one that is not full. With padding rows, at
// least as many are left as would hold them.
template <int kRows>
int64_t MaxTiles(const Params& p, int64_t min_packed_rows, bool fill_padding) {
  const int64_t rows = p.num_tokens * (p.num_heads / p.num_kv_heads());
  const int64_t num_seqs = std::min(p.num_seqs, rows / std::max<int64_t>(min_packed_rows, 1));
  return (rows + (num_seqs + fill_padding) * (kRows - 1)) / kRows;
}

}  // namespace intarsia::attention::prefill
