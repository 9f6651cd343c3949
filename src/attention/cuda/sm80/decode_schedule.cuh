// The device side of decode_plan.h: every CTA finds its own slice of the work line from the lengths
// in device memory, so the host need not know them.
#pragma once
#include "src/attention/cuda/ragged.cuh"
#include "src/attention/cuda/sm80/decode.h"
#include "src/attention/decode_plan.h"
#include "src/core/round.h"

namespace intarsia::attention::decode {

// What a launch computes, and in which units.
struct Cut {
  int max_packed_rows = 0;  // of a sequence
  int granule_shift = 0;    // log2 of a granule's keys
  int head_parts = 0;       // the kernel's num_kv_heads is this many times that of the cache
  Sharing sharing;
  int taken_keys = -1;  // sequences with up to so many keys are another kernel's
};

__device__ __forceinline__ SequenceWork WorkOf(const Params& p, const Sequence& sequence,
                                               const Cut& cut) {
  const int packed_rows = sequence.tokens.size() * GroupSize(p);
  if (packed_rows == 0 || packed_rows > cut.max_packed_rows || sequence.len_k <= cut.taken_keys)
    return {};
  const Range keys = VisibleToRows(p, sequence, 0, packed_rows - 1).some;
  const int granule_keys = 1 << cut.granule_shift;
  return WorkOfItems(
      static_cast<int>(CeilDiv(static_cast<unsigned>(packed_rows), unsigned{kTileRows})),
      (max(keys.size(), 0) + granule_keys - 1) >> cut.granule_shift);
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
  const VisibleRange visible =
      VisibleToRows(p, sequence, tile.first_row, tile.first_row + tile.rows - 1);
  // Where the sequence's granules begin: no later row sees an earlier key than the first one does.
  const int first_key =
      tile.first_row == 0 ? visible.some.begin : VisibleToRows(p, sequence, 0, 0).some.begin;
  tile.keys.begin = max(visible.some.begin, first_key + (piece.granule_begin << cut.granule_shift));
  tile.keys.end = min(visible.some.end, first_key + (piece.granule_end << cut.granule_shift));
  tile.seen_by_all = visible.all;
  return tile;
}

// A CTA's slice [begin, end) of the work line, and the sequence in which it begins.
struct Slice {
  int begin = 0, end = 0, payload = 1;
  Sequence sequence;
  SequenceWork work;       // of the sequence
  int sequence_begin = 0;  // on the line
  int even_cost = 0;       // > 0: what each item costs (EvenPieces), not what WorkOf says
  Padding padding;
};

// What an associative `combine` makes of the x of all threads of a CTA before this one. `warps`:
// shared.
template <int kThreads, class Combine>
__device__ __forceinline__ int ExclusiveScan(int x, int identity, int (&warps)[kThreads / 32],
                                             Combine combine) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, x, distance);
    if (lane >= distance) x = combine(other, x);
  }
  if (lane == 31) warps[warp] = x;
  x = __shfl_up_sync(0xffffffffu, x, 1);
  if (lane == 0) x = identity;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w)
    if (w < warp) x = combine(warps[w], x);
  return x;
}

// FindSlice of a plain call (decode_plain.cuh) of at most kFewSeqs sequences, each a lane's: all
// warps compute the same, and none waits.
inline constexpr int kFewSeqs = 32;
__device__ __forceinline__ Slice FindSliceOfFew(const Params& p, const Cut& cut, int index,
                                                int num_slices) {
  const int lane = threadIdx.x % 32;
  const bool looks = lane < NumSeqs(p);
  const int front = FirstToken(p);
  int end = front;
  const Range tokens = RangeOfLane(looks ? EndOf(p, lane) : 0, end);
  Sequence sequence;
  SequenceWork work;
  if (looks) {
    sequence = SequenceAt(p, lane, tokens.begin, 0);
    work = WorkOf(p, sequence, cut);
  }
  int through = SumThroughLane(work.cost()), line = __shfl_sync(0xffffffffu, through, 31);
  const int items = __reduce_add_sync(0xffffffffu, work.items),
            largest = __reduce_max_sync(0xffffffffu, work.items > 0 ? work.item_cost : 0);
  int payload = Payload(line, num_slices);
  const EvenPieces even = EvenPiecesOf(line, items, largest, num_slices);
  if (even.payload > 0) {
    payload = even.payload;
    work.item_cost = even.item_cost();
    through = SumThroughLane(work.cost());
    line = items * even.item_cost();
  }
  const int begin = index * payload;
  const int owner = max(__ffs(__ballot_sync(0xffffffffu, begin < through)) - 1, 0);
  const auto of_owner = [&](int x) { return __shfl_sync(0xffffffffu, x, owner); };
  return {.begin = begin,
          .end = min(begin + payload, line),
          .payload = payload,
          .sequence = {.index = of_owner(sequence.index),
                       .tokens = {of_owner(sequence.tokens.begin), of_owner(sequence.tokens.end)},
                       .len_k = of_owner(sequence.len_k),
                       .k_begin = of_owner(sequence.k_begin),
                       .key_end = of_owner(sequence.key_end)},
          .work = {of_owner(work.items), of_owner(work.granules), of_owner(work.item_cost)},
          .sequence_begin = of_owner(through - work.cost()),
          .even_cost = even.item_cost(),
          .padding = {front, end}};
}

// Each thread adds up the work of a run of sequences; the one in whose run the slice begins then
// finds the sequence. So there is no limit on the number of sequences.
template <int kThreads>
__device__ __forceinline__ Slice FindSlice(const Params& p, const Cut& cut, int index,
                                           int num_slices) {
  __shared__ int warp_ends[kThreads / 32], warp_key_ends[kThreads / 32], warp_works[kThreads / 32],
      line;
  __shared__ Slice found;
  const int num_seqs = NumSeqs(p), run = CeilDiv(num_seqs, kThreads), front = FirstToken(p);
  const int thread = threadIdx.x, first = min(thread * run, num_seqs),
            last = min(first + run, num_seqs);
  const auto largest = [](int a, int b) { return max(a, b); };
  int end = front, begin_key = 0;  // `end`: of the run
  for (int i = first; i < last; ++i) end = max(end, EndOf(p, i));
  const int begin_token = ExclusiveScan<kThreads>(end, front, warp_ends, largest);
  if (!p.paged) {
    const int first_key = FirstKey(p);
    int key_end = first_key;
    for (int i = first; i < last; ++i) key_end = max(key_end, KeyEndOf(p, i));
    begin_key = ExclusiveScan<kThreads>(key_end, first_key, warp_key_ends, largest);
  }

  int own = 0;
  Sequence sequence{.tokens = {front, begin_token}, .key_end = begin_key};
  SequenceWork work;
#pragma unroll 1
  for (int i = first; i < last; ++i) {
    sequence = SequenceAt(p, i, sequence.tokens.end, sequence.key_end);
    work = WorkOf(p, sequence, cut);
    own += work.cost();
  }
  const int before =
      ExclusiveScan<kThreads>(own, 0, warp_works, [](int a, int b) { return a + b; });
  const int through = before + own;
  if (thread == kThreads - 1) {
    line = through;
    found = {.padding = {front, max(begin_token, end)}};
  }
  __syncthreads();
  const int payload = Payload(line, num_slices), begin = index * payload;
  if (before <= begin && begin < through) {
    int sequence_begin = before;
    if (last - first > 1) {  // else the loop above has ended where it began
      sequence = SequenceAt(p, first, begin_token, begin_key);
      work = WorkOf(p, sequence, cut);
      while (sequence_begin + work.cost() <= begin) {
        sequence_begin += work.cost();
        sequence = SequenceAt(p, sequence.index + 1, sequence.tokens.end, sequence.key_end);
        work = WorkOf(p, sequence, cut);
      }
    }
    found = {begin,
             min(begin + payload, line),
             payload,
             sequence,
             work,
             sequence_begin,
             /*even_cost=*/0,
             found.padding};
  }
  __syncthreads();
  return found;
}

}  // namespace intarsia::attention::decode
