// What a ragged batch is: its sequences, their rows of q, and the keys that a row sees. Pure
// functions, for the host and for kernels. Nothing here trusts an index that it reads.
//
// Int counts tokens and keys: int64_t on the CPU, and in kernels int, which has room for the sum of
// two counts (kMaxCount). What is computed from operands is clamped in 64 bits first.
#pragma once
#include <cstdint>
#include <type_traits>

#include "src/attention/attention.h"

namespace intarsia::attention {

// Tokens or keys [begin, end).
template <class Int>
struct RangeOf {
  Int begin = 0, end = 0;
  [[gnu::always_inline]] INTARSIA_HOST_DEVICE Int size() const { return end - begin; }
};

// Where a sequence lies, with every number clamped to what the arrays hold.
template <class Int>
struct SequenceOf {
  Int index = 0;        // its row of the page table
  RangeOf<Int> tokens;  // rows of q
  Int len_k = 0;
  Int k_begin = 0;  // the slot of key 0: in its pages, or in dense K and V
  Int key_end = 0;  // of its rows of dense K and V, used or not
};

[[gnu::always_inline]] INTARSIA_HOST_DEVICE inline int64_t Clamp(int64_t x, int64_t low,
                                                                 int64_t high) {
  return x < low ? low : x > high ? high : x;
}

// How many sequences count.
template <class Int = int>
[[gnu::always_inline]] INTARSIA_HOST_DEVICE inline Int NumSeqsFrom(const Params& p,
                                                                   int64_t number) {
  return static_cast<Int>(p.num_seqs_device.data ? Clamp(number, 0, p.num_seqs) : p.num_seqs);
}
template <class Int = int>
[[gnu::always_inline]] INTARSIA_HOST_DEVICE inline Int NumSeqs(const Params& p) {
  return NumSeqsFrom<Int>(p, p.num_seqs_device.data ? p.num_seqs_device.At(0) : 0);
}

// Where sequence seq ends in q, unless an earlier one ends later: cu_seqlens_q may hold anything,
// and counts as the largest number so far. So sequences never overlap.
template <class Int>
[[gnu::always_inline]] INTARSIA_HOST_DEVICE inline Int EndFrom(const Params& p, int64_t number) {
  return static_cast<Int>(Clamp(number, 0, p.num_tokens));
}
template <class Int>
[[gnu::always_inline]] INTARSIA_HOST_DEVICE inline Int EndOf(const Params& p, Int seq) {
  return EndFrom<Int>(p, p.cu_seqlens_q.At(seq + 1));
}
// Where the first sequence begins.
template <class Int = int>
[[gnu::always_inline]] INTARSIA_HOST_DEVICE inline Int FirstToken(const Params& p) {
  return EndOf<Int>(p, -1);
}

// The same of cu_seqlens_k and dense K and V; 0 with pages, which sequences may share.
template <class Int>
[[gnu::always_inline]] INTARSIA_HOST_DEVICE inline Int KeyEndFrom(const Params& p, int64_t number) {
  return p.paged ? 0 : static_cast<Int>(Clamp(number, 0, p.cache.page_size));
}
template <class Int>
[[gnu::always_inline]] INTARSIA_HOST_DEVICE inline Int KeyEndOf(const Params& p, Int seq) {
  return p.paged ? 0 : KeyEndFrom<Int>(p, p.cu_seqlens_k.At(seq + 1));
}
template <class Int = int>
[[gnu::always_inline]] INTARSIA_HOST_DEVICE inline Int FirstKey(const Params& p) {
  return KeyEndOf<Int>(p, -1);
}

// Sequence seq, of which it is known where its rows of q and of dense K and V are. `used` and
// `leftpad`: its numbers of seqused_k and leftpad_k, if these are there.
template <class Int>
INTARSIA_HOST_DEVICE inline SequenceOf<Int> SequenceOver(const Params& p, Int seq,
                                                         const RangeOf<Int>& tokens,
                                                         const RangeOf<Int>& keys, int64_t used,
                                                         int64_t leftpad) {
  SequenceOf<Int> s{seq, tokens};
  int64_t len_k = 0, max_len_k = p.max_len_k;
  if (!p.paged) {
    s.key_end = keys.end;
    len_k = keys.size();
    // Not the next sequence's keys, whatever seqused_k says.
    max_len_k = max_len_k < len_k ? max_len_k : len_k;
  }
  if (p.seqused_k.data) len_k = used;
  len_k = Clamp(len_k, 0, max_len_k);
  leftpad = p.leftpad_k.data ? Clamp(leftpad, 0, len_k) : 0;
  s.k_begin = static_cast<Int>(keys.begin + leftpad);
  s.len_k = static_cast<Int>(len_k - leftpad);
  return s;
}
template <class Int>
INTARSIA_HOST_DEVICE inline SequenceOf<Int> SequenceOver(const Params& p, Int seq,
                                                         const RangeOf<Int>& tokens,
                                                         const RangeOf<Int>& keys) {
  return SequenceOver(p, seq, tokens, keys, p.seqused_k.data ? p.seqused_k.At(seq) : 0,
                      p.leftpad_k.data ? p.leftpad_k.At(seq) : 0);
}
// `begin` and `key_begin`: where the sequence before it ends, or FirstToken and FirstKey.
template <class Int>
INTARSIA_HOST_DEVICE inline SequenceOf<Int> SequenceAt(const Params& p, Int seq,
                                                       std::type_identity_t<Int> begin,
                                                       std::type_identity_t<Int> key_begin) {
  const Int end = EndOf(p, seq), key_end = p.paged ? key_begin : KeyEndOf(p, seq);
  return SequenceOver<Int>(p, seq, {begin, begin < end ? end : begin},
                           {key_begin, key_begin < key_end ? key_end : key_begin});
}

// Where a token (counted within the sequence) stands among the keys.
template <class Int>
[[gnu::always_inline]] INTARSIA_HOST_DEVICE inline int64_t PositionOf(
    const SequenceOf<Int>& s, std::type_identity_t<Int> token) {
  return int64_t{token} + s.len_k - s.tokens.size();
}

// The keys that a token (counted within the sequence) sees through its window; empty ranges may
// have end < begin.
template <class Int>
[[gnu::always_inline]] INTARSIA_HOST_DEVICE inline RangeOf<Int> VisibleKeys(
    const Params& p, const SequenceOf<Int>& s, std::type_identity_t<Int> token) {
  const int64_t position = PositionOf(s, token);
  RangeOf<Int> keys{0, s.len_k};
  if (p.window_left >= 0)
    keys.begin = static_cast<Int>(Clamp(position - p.window_left, 0, s.len_k));
  if (p.window_right >= 0)
    keys.end = static_cast<Int>(Clamp(position + p.window_right + 1, 0, s.len_k));
  return keys;
}

// Those of them in the token's own chunk; none at a position below 0. Apart from VisibleKeys, since
// kernels that have no chunks (the gradient's) would spill registers for it; and others
// for a division.
template <class Int>
[[gnu::always_inline]] INTARSIA_HOST_DEVICE inline RangeOf<Int> VisibleKeysOfChunk(
    const Params& p, const SequenceOf<Int>& s, std::type_identity_t<Int> token) {
  RangeOf<Int> keys = VisibleKeys(p, s, token);
  const int64_t position = PositionOf(s, token);
  if (p.attention_chunk > 0 && position < 0) {
    keys.end = 0;
  } else if (p.attention_chunk > 0) {
    const Int own = static_cast<Int>(position);
    const Int chunk = static_cast<Int>(p.attention_chunk);
    Int number;
    if constexpr (sizeof(Int) == sizeof(int32_t))
      number = static_cast<Int>(p.chunk_divisor.Divide(static_cast<uint32_t>(own)));
    else
      number = own / chunk;
    const Int chunk_begin = number * chunk;
    if (keys.begin < chunk_begin) keys.begin = chunk_begin;
    if (keys.end > chunk_begin + chunk) keys.end = chunk_begin + chunk;
  }
  return keys;
}

// The other way round: the tokens (counted within the sequence) that see some of its keys [first,
// last].
template <class Int>
[[gnu::always_inline]] INTARSIA_HOST_DEVICE inline RangeOf<int64_t> TokensThatSee(
    const Params& p, const SequenceOf<Int>& s, int64_t first, int64_t last) {
  // Copies: by reference, kernels of the gradient would take more registers.
  const int64_t left = p.window_left, right = p.window_right;
  const int64_t len_q = s.tokens.size(), len_k = s.len_k, shift = len_k - len_q;
  const auto clamp = [&](int64_t token) { return token < 0 ? 0 : token > len_q ? len_q : token; };
  return {right < 0 ? 0 : clamp(first - right - shift),
          left < 0 ? len_q : clamp(last + left - shift + 1)};
}

}  // namespace intarsia::attention
