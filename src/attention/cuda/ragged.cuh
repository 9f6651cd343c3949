// The ragged batch (ragged.h) on the device: which sequence a CTA's item belongs to, where packed
// rows lie, and what is outside of all sequences.
//
// Packed row r of a sequence and a KV head is token r / G and query head r % G of the G = h / hk
// heads that share the KV head. So a tile of packed rows reads K and V once for all of them.
#pragma once
#include <cstdint>

#include "src/attention/cuda/forward_launch.h"
#include "src/attention/ragged.h"
#include "src/core/cuda/ptx.cuh"
#include "src/core/cuda/vec.cuh"
#include "src/core/round.h"

namespace intarsia::attention {

inline constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

__device__ __forceinline__ int GroupSize(const Params& p) { return p.group; }
__device__ __forceinline__ int TokenOfRow(const Params& p, int row) {
  return static_cast<int>(p.group_divisor.Divide(static_cast<uint32_t>(row)));
}

using Range = RangeOf<int>;
using Sequence = SequenceOf<int>;

// The rows of each lane's sequence, which ends at own_end unless an earlier one ends later. `end`:
// where the sequences before the warp's end; then, where these do.
__device__ __forceinline__ Range RangeOfLane(int own_end, int& end) {
  const int lane = threadIdx.x % 32;
  int through = max(end, own_end);
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2)
    through = max(through, __shfl_up_sync(0xffffffffu, through, distance));
  const int before = __shfl_up_sync(0xffffffffu, through, 1);
  const Range own{lane ? before : end, through};
  end = __shfl_sync(0xffffffffu, through, 31);
  return own;
}

// The sum of the x of all lanes up to this one.
__device__ __forceinline__ int SumThroughLane(int x) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, x, distance);
    if (lane >= distance) x += other;
  }
  return x;
}

// Number i of a vector that may be absent; 0 if !there. See LoadIndexIf.
__device__ __forceinline__ int64_t LoadIf(bool there, const IndexVector& vector, int i) {
  return cuda::LoadIndexIf(there && vector.data, vector.data, vector.wide, i);
}

// Walks over the batch, 32 sequences at a time, a lane each, from the first 32 on; a warp together.
// A copy of one that is still there begins another walk, without reading the sequences again.
// Nothing that is read waits for anything else.
class LaneSequences {
 public:
  __device__ __forceinline__ explicit LaneSequences(const Params& p) : p_(p) {
    const int64_t num_seqs = LoadIf(true, p.num_seqs_device, 0);
    const int64_t end = LoadIf(true, p.cu_seqlens_q, 0);
    const int64_t key_end = LoadIf(!p.paged, p.cu_seqlens_k, 0);
    const Numbers numbers(p, Seq());
    num_seqs_ = NumSeqsFrom(p, num_seqs);
    end_ = EndFrom<int>(p, end);
    key_end_ = KeyEndFrom<int>(p, key_end);
    Take(numbers);
  }

  // Goes on to the next 32, if there are any. Lanes behind the last one have an empty sequence.
  __device__ __forceinline__ bool Next() {
    if (first_ + 32 >= num_seqs_) return false;
    first_ += 32;
    Take(Numbers(p_, Seq()));
    return true;
  }
  __device__ __forceinline__ const Sequence& own() const { return own_; }  // the lane's
  __device__ __forceinline__ Sequence Of(int lane) const {
    const auto of_lane = [&](int x) { return __shfl_sync(0xffffffffu, x, lane); };
    return {.index = of_lane(own_.index),
            .tokens = {of_lane(own_.tokens.begin), of_lane(own_.tokens.end)},
            .len_k = of_lane(own_.len_k),
            .k_begin = of_lane(own_.k_begin),
            .key_end = p_.paged ? 0 : of_lane(own_.key_end)};
  }
  __device__ __forceinline__ int end() const { return end_; }  // of the tokens of those so far

 private:
  // What is read of a sequence, whether it counts or not.
  struct Numbers {
    __device__ __forceinline__ Numbers(const Params& p, int seq)
        : end(LoadIf(seq < p.num_seqs, p.cu_seqlens_q, seq + 1)),
          key_end(LoadIf(seq < p.num_seqs && !p.paged, p.cu_seqlens_k, seq + 1)),
          used(LoadIf(seq < p.num_seqs, p.seqused_k, seq)),
          leftpad(LoadIf(seq < p.num_seqs, p.leftpad_k, seq)) {}
    int64_t end, key_end, used, leftpad;
  };

  __device__ __forceinline__ int Seq() const { return first_ + static_cast<int>(threadIdx.x % 32); }
  __device__ __forceinline__ void Take(const Numbers& numbers) {
    const int seq = Seq();
    const bool counts = seq < num_seqs_;
    const Range tokens = RangeOfLane(counts ? EndFrom<int>(p_, numbers.end) : 0, end_);
    Range keys;
    if (!p_.paged) keys = RangeOfLane(counts ? KeyEndFrom<int>(p_, numbers.key_end) : 0, key_end_);
    own_ = SequenceOver(p_, seq, tokens, keys, numbers.used, numbers.leftpad);
    if (!counts) own_.len_k = 0;
  }

  const Params& p_;
  int num_seqs_, first_ = 0, end_, key_end_;
  Sequence own_;
};

// One of the things that sequences have several of.
struct OwnedItem {
  bool exists = false;
  Sequence sequence;          // its owner
  int number = 0, count = 0;  // which of the owner's `count` it is
  // If there is none: where the sequences end, and by how much `index` is too large.
  int end = 0, beyond = 0;
};

// Which lane's sequence owns an item, and which of its items that is.
struct LaneItem {
  int lane, number;
};
// Sequence by sequence. `through`: the items of the lanes up to this one, of which `own` are its.
struct SequenceOrder {
  static constexpr bool kSums = true;  // it needs `through`
  __device__ __forceinline__ LaneItem operator()(const Sequence&, int index, int own,
                                                 int through) const {
    const int lane = __ffs(__ballot_sync(0xffffffffu, index < through)) - 1;
    return {lane, index - __shfl_sync(0xffffffffu, through - own, lane)};
  }
};

// Finds item number `index` of all, `count(sequence)` of each, 0 of an empty one; a warp looks at
// 32 sequences at a time, whose items are numbered by `order`.
template <class Count, class Order = SequenceOrder>
__device__ __forceinline__ OwnedItem FindItem(const Params& p, int index, Count count,
                                              Order order = {}) {
  return FindItem(LaneSequences(p), index, count, order);
}
template <class Count, class Order = SequenceOrder>
__device__ __forceinline__ OwnedItem FindItem(LaneSequences sequences, int index, Count count,
                                              Order order = {}) {
  do {
    const int own = count(sequences.own());
    int through = 0, all;
    if constexpr (Order::kSums) {
      through = SumThroughLane(own);
      all = __shfl_sync(0xffffffffu, through, 31);
    } else {
      all = __reduce_add_sync(0xffffffffu, own);
    }
    if (index < all) {
      const LaneItem item = order(sequences.own(), index, own, through);
      return {.exists = true,
              .sequence = sequences.Of(item.lane),
              .number = item.number,
              .count = __shfl_sync(0xffffffffu, own, item.lane)};
    }
    index -= all;
  } while (sequences.Next());
  return {.end = sequences.end(), .beyond = index};
}

// Short sequences with up to so many keys are the prefill kernel's: a task no longer than a quarter
// more than the mean of its CTAs' work, had they all sequences, makes none of them late (Graham
// 1969). An estimate in tiles of 128, as d=128 has. A warp together; the same number in all warps
// and kernels.
__device__ __forceinline__ int TakenKeys(const Params& p, LaneSequences sequences,
                                         const Sharing& sharing) {
  constexpr int kTileRows = 128, kTileKeys = 128;
  int64_t tiles = 0;
  do {
    const Range& tokens = sequences.own().tokens;
    int64_t keys = sequences.own().len_k;
    if (p.window_right >= 0) keys = max(keys - tokens.size() / 2, int64_t{0});
    if (p.window_left >= 0) keys = min(keys, p.window_left + kTileKeys);
    tiles += CeilDiv<int64_t>(int64_t{tokens.size()} * sharing.group, kTileRows) *
             CeilDiv<int64_t>(keys, kTileKeys);
  } while (sequences.Next());
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    tiles += __shfl_xor_sync(0xffffffffu, tiles, distance);
  const int64_t load = tiles * sharing.num_kv_heads / sharing.ctas;
  return static_cast<int>(min(load * kTileKeys * 5 / 4, int64_t{kMaxCount}));
}

// What rows [first, last] of a sequence see: some of them, and all of them.
struct VisibleRange {
  Range some, all;
};
__device__ __forceinline__ VisibleRange VisibleToRows(const Params& p, const Sequence& s, int first,
                                                      int last) {
  const int last_token = s.tokens.size() - 1;
  const int begin = min(TokenOfRow(p, first), last_token),
            end = min(TokenOfRow(p, last), last_token);
  const Range a = VisibleKeysOfChunk(p, s, begin);
  Range b = a;
  if (end != begin) b = VisibleKeysOfChunk(p, s, end);
  return {{a.begin, b.end}, {b.begin, a.end}};
}

// A packed row's place in q, out and lse.
struct RowPlace {
  int64_t token, head;
};
__device__ __forceinline__ RowPlace PlaceOf(const Params& p, const Sequence& s, int kv_head,
                                            int row) {
  const int group = GroupSize(p), token = TokenOfRow(p, row);
  return {int64_t{s.tokens.begin} + token, int64_t{kv_head} * group + row - token * group};
}

// The rows of q outside of all sequences: [0, front) and [back, t).
struct Padding {
  int front = 0, back = 0;
};

// Writes out = 0 and lse = -inf to padding rows first, first + step, ...; all threads of a CTA, or
// `threads` of them, of which this is number `thread`. Unit: of a store, at most a row and aligned.
template <class Unit = uint16_t>
__device__ inline void FillPadding(const Params& p, const Padding& padding, int first, int step,
                                   unsigned thread = threadIdx.x, unsigned threads = blockDim.x) {
  const int count = padding.front + static_cast<int>(p.num_tokens) - padding.back;
  // Zeros are the same in all types; the smallest of out's has two bytes.
  const int64_t halves = p.num_heads * p.cache.v_head_dim * (p.out_dtype == DType::kF32 ? 2 : 1);
  const int64_t units = halves / static_cast<int>(sizeof(Unit) / 2);
  for (int row = first; row < count; row += step) {
    const int64_t token = row < padding.front ? row : row - padding.front + padding.back;
    for (int64_t i = thread; i < units; i += threads)
      static_cast<Unit*>(p.out)[token * units + i] = {};
    if (!p.lse) continue;
    for (int64_t head = thread; head < p.num_heads; head += threads)
      p.lse[head * p.num_tokens + token] = -INFINITY;
  }
}

}  // namespace intarsia::attention
