// Which tile of rows a CTA of the prefill kernel computes, found from the lengths in device memory,
// so the host need not know them.
#pragma once
#include "src/attention/tile.cuh"

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

// Finds tile number `index` of those of the sequences with at least min_packed_rows rows. A warp
// looks at 32 sequences at a time. The last tile of a sequence comes first: under a causal mask it
// is the longest one, and what starts late should be short.
template <int kRows>
__device__ __forceinline__ RowTile FindRowTile(const Params& p, int64_t min_packed_rows,
                                               int index) {
  const int num_seqs = NumSeqs(p), group = GroupSize(p), lane = threadIdx.x % 32;
  RowTile tile{.padding = {.front = FirstToken(p)}};
  int end = tile.padding.front;  // of the sequences looked at
  for (int base = 0; base < num_seqs; base += 32) {
    const Range tokens = TokensOfLane(p, num_seqs, base, end);
    const int rows = tokens.size() * group;
    int through = rows > 0 && rows >= min_packed_rows ? (rows + kRows - 1) / kRows : 0;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, through, distance);
      if (lane >= distance) through += other;
    }
    // `through` is now the inclusive prefix sum.
    if (const uint32_t behind = __ballot_sync(0xffffffffu, index < through)) {
      const int owner = __ffs(behind) - 1;
      tile.exists = true;
      tile.sequence = SequenceAt(p, base + owner, __shfl_sync(0xffffffffu, tokens.begin, owner));
      tile.first_row = (__shfl_sync(0xffffffffu, through, owner) - 1 - index) * kRows;
      return tile;
    }
    index -= __shfl_sync(0xffffffffu, through, 31);
  }
  tile.padding.back = end;
  tile.share = index;
  return tile;
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
