// The device side of decode_plan.h: every CTA finds its own slice of the work line from the lengths
// in device memory, so the host need not know them.
#pragma once
#include "src/attention/decode.h"
#include "src/attention/decode_plan.h"
#include "src/attention/tile.cuh"

namespace intarsia::attention::decode {

// What a launch computes, and in which units.
struct Cut {
  int max_packed_rows = 0;  // of a sequence
  int granule_keys = 0;
  int head_parts = 0;  // the kernel's num_kv_heads is this many times that of the cache
};

__device__ __forceinline__ SequenceWork WorkOf(const Params& p, const Sequence& sequence,
                                               const Cut& cut) {
  const int packed_rows = sequence.tokens.size() * GroupSize(p);
  if (packed_rows == 0 || packed_rows > cut.max_packed_rows) return {};
  const Range keys = VisibleToRows(p, sequence, 0, packed_rows - 1).some;
  return {CeilDiv(packed_rows, kTileRows), CeilDiv(max(keys.size(), 0), cut.granule_keys)};
}

// What a CTA computes at a time: a piece of an item.
struct PieceTile {
  int first_row = 0, rows = 0;  // packed rows of the sequence
  Range keys;                   // those of the piece that some row sees
  Range seen_by_all;            // those that every row sees
};

__device__ __forceinline__ PieceTile TileOf(const Params& p, const Sequence& sequence,
                                            const Piece& piece, const Cut& cut) {
  const int packed_rows = sequence.tokens.size() * GroupSize(p);
  PieceTile tile;
  tile.first_row = piece.item * kTileRows;
  tile.rows = min(kTileRows, packed_rows - tile.first_row);
  const int first_key = VisibleToRows(p, sequence, 0, packed_rows - 1).some.begin;
  const VisibleRange visible =
      VisibleToRows(p, sequence, tile.first_row, tile.first_row + tile.rows - 1);
  tile.keys.begin = max(visible.some.begin, first_key + piece.granule_begin * cut.granule_keys);
  tile.keys.end = min(visible.some.end, first_key + piece.granule_end * cut.granule_keys);
  tile.seen_by_all = visible.all;
  return tile;
}

// A CTA's slice [begin, end) of the work line, and the sequence in which it begins.
struct Slice {
  int begin = 0, end = 0, payload = 1;
  Sequence sequence;
  SequenceWork work;       // of the sequence
  int sequence_begin = 0;  // on the line
};

// Each thread adds up the work of a run of sequences; the one in whose run the slice begins then
// finds the sequence. So there is no limit on the number of sequences.
template <int kThreads>
__device__ __forceinline__ Slice FindSlice(const Params& p, const Cut& cut, int index,
                                           int num_slices) {
  constexpr int kWarps = kThreads / 32;
  __shared__ int warp_work[kWarps];
  __shared__ Slice found;
  const int num_seqs = NumSeqs(p), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int run = CeilDiv(num_seqs, kThreads);
  const int first = min(static_cast<int>(threadIdx.x) * run, num_seqs),
            last = min(first + run, num_seqs);
  int own = 0;
  Sequence sequence;
  SequenceWork work;
#pragma unroll 1
  for (int i = first; i < last; ++i) {
    sequence = SequenceAt(p, i);
    work = WorkOf(p, sequence, cut);
    own += work.cost();
  }
  int through = own;  // the inclusive prefix sum
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, through, distance);
    if (lane >= distance) through += other;
  }
  if (lane == 31) warp_work[warp] = through;
  if (threadIdx.x == 0) found = {};
  __syncthreads();
  int line = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) through += warp_work[w];
    line += warp_work[w];
  }
  const int payload = Payload(line, num_slices), begin = index * payload;
  if (through - own <= begin && begin < through) {
    // Back from the run's last sequence, which is the only one if there are not more than threads.
    int sequence_begin = through - work.cost();
    for (int i = last - 2; sequence_begin > begin; --i) {
      sequence = SequenceAt(p, i);
      work = WorkOf(p, sequence, cut);
      sequence_begin -= work.cost();
    }
    found = {begin, min(begin + payload, line), payload, sequence, work, sequence_begin};
  }
  __syncthreads();
  return found;
}

}  // namespace intarsia::attention::decode
