// What a ragged batch is on the device: its sequences, their tiles of rows, the keys that a row
// sees, and where those lie. Nothing here trusts an index that it reads.
//
// Packed row r of a sequence and a KV head is token r / G and query head r % G of the G = h / hk
// heads that share the KV head. So a tile of packed rows reads K and V once for all of them.
#pragma once
#include <algorithm>
#include <bit>
#include <initializer_list>

#include "src/attention/attention.h"
#include "src/core/cuda/vec.cuh"

namespace intarsia::attention {

inline constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
// The kernels count query rows, keys and pages in 32 bits, with room for the sum of two.
inline constexpr int64_t kMaxCount = int64_t{1} << 30;

__device__ __forceinline__ int64_t Clamp(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
}

__device__ __forceinline__ int GroupSize(const Params& p) {
  return static_cast<int>(p.num_heads) / static_cast<int>(p.cache.num_kv_heads);
}

__device__ __forceinline__ int NumSeqs(const Params& p) {
  if (!p.num_seqs_device.data) return static_cast<int>(p.num_seqs);
  return static_cast<int>(Clamp(p.num_seqs_device.At(0), 0, p.num_seqs));
}

// Tokens or keys [begin, end).
struct Range {
  int begin = 0, end = 0;
  __device__ int size() const { return end - begin; }
};

// The rows of q of a sequence.
__device__ __forceinline__ Range TokensOf(const Params& p, int seq) {
  const int64_t begin = Clamp(p.cu_seqlens_q.At(seq), 0, p.num_tokens);
  const int64_t end = Clamp(p.cu_seqlens_q.At(seq + 1), begin, p.num_tokens);
  return {static_cast<int>(begin), static_cast<int>(end)};
}

// The rows of q behind all sequences.
__device__ __forceinline__ Range PaddingTokens(const Params& p) {
  const int num_seqs = NumSeqs(p);
  const int64_t begin = num_seqs ? Clamp(p.cu_seqlens_q.At(num_seqs), 0, p.num_tokens) : 0;
  return {static_cast<int>(begin), static_cast<int>(p.num_tokens)};
}

struct Sequence {
  int index = 0;
  Range tokens;
  int len_k = 0;
  int k_begin = 0;  // dense K and V: the row of key 0
};

__device__ inline Sequence SequenceAt(const Params& p, int seq) {
  Sequence s{seq, TokensOf(p, seq)};
  int64_t len_k = 0, max_len_k = p.max_len_k;
  if (!p.paged) {
    const int64_t begin = p.cu_seqlens_k.At(seq);
    len_k = p.cu_seqlens_k.At(seq + 1) - begin;
    s.k_begin = static_cast<int>(Clamp(begin, 0, p.cache.page_size));
    max_len_k = min(max_len_k, p.cache.page_size - s.k_begin);
  }
  if (p.seqused_k.data) len_k = p.seqused_k.At(seq);
  s.len_k = static_cast<int>(Clamp(len_k, 0, max_len_k));
  return s;
}

// The keys that a token (counted within the sequence) sees; empty ranges may have end < begin.
__device__ __forceinline__ Range VisibleKeys(const Params& p, const Sequence& s, int token) {
  const int64_t position = int64_t{token} + s.len_k - s.tokens.size();
  Range keys{0, s.len_k};
  if (p.window_left >= 0)
    keys.begin = static_cast<int>(Clamp(position - p.window_left, 0, s.len_k));
  if (p.window_right >= 0)
    keys.end = static_cast<int>(Clamp(position + p.window_right + 1, 0, s.len_k));
  return keys;
}

// What rows [first, last] of a sequence see: some of them, and all of them.
struct VisibleRange {
  Range some, all;
};
__device__ __forceinline__ VisibleRange VisibleToRows(const Params& p, const Sequence& s, int first,
                                                      int last) {
  const int group = GroupSize(p), last_token = s.tokens.size() - 1;
  const Range a = VisibleKeys(p, s, min(first / group, last_token));
  const Range b = VisibleKeys(p, s, min(last / group, last_token));
  return {{a.begin, b.end}, {b.begin, a.end}};
}

// A packed row's place in q, out and lse.
struct RowPlace {
  int64_t token, head;
};
__device__ __forceinline__ RowPlace PlaceOf(const Params& p, const Sequence& s, int kv_head,
                                            int row) {
  const int group = GroupSize(p), token = row / group;
  return {int64_t{s.tokens.begin} + token, int64_t{kv_head} * group + row - token * group};
}

// kRows packed rows of a sequence, from first_row on.
struct RowTile {
  Sequence sequence;
  int first_row = 0;
};

// Finds tile number `index` of those of the sequences with at least min_packed_rows rows, then, if
// asked for, of the padding, which counts as one more sequence without keys. False: there are not
// so many. A warp looks at 32 sequences at a time. The last tile of a sequence comes first: under a
// causal mask it is the longest one, and what starts late should be short.
template <int kRows>
__device__ __forceinline__ bool FindRowTile(const Params& p, int64_t min_packed_rows, bool padding,
                                            int index, RowTile& tile) {
  const int num_seqs = NumSeqs(p), group = GroupSize(p), lane = threadIdx.x % 32;
  for (int base = 0; base < num_seqs; base += 32) {
    int tiles = 0;
    if (base + lane < num_seqs) {
      const int rows = TokensOf(p, base + lane).size() * group;
      tiles = rows >= min_packed_rows ? (rows + kRows - 1) / kRows : 0;
    }
    int through = tiles;  // the inclusive prefix sum
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, through, distance);
      if (lane >= distance) through += other;
    }
    if (const uint32_t behind = __ballot_sync(0xffffffffu, index < through)) {
      const int owner = __ffs(behind) - 1;
      tile.sequence = SequenceAt(p, base + owner);
      tile.first_row = (__shfl_sync(0xffffffffu, through, owner) - 1 - index) * kRows;
      return true;
    }
    index -= __shfl_sync(0xffffffffu, through, 31);
  }
  tile.sequence = {0, PaddingTokens(p)};
  tile.first_row = index * kRows;
  return padding && tile.first_row < tile.sequence.tokens.size() * group;
}

// Division by a number that the host knows (Granlund and Montgomery 1994, figure 4.1).
class Divisor {
 public:
  explicit Divisor(int64_t n)  // 1 <= n < 2^31
      : shift_(std::bit_width(static_cast<uint32_t>(n - 1))),
        multiplier_(static_cast<uint32_t>((((uint64_t{1} << shift_) - n) << 32) / n + 1)) {}
  // x < 2^31
  __device__ __forceinline__ uint32_t Divide(uint32_t x) const {
    return (__umulhi(x, multiplier_) + x) >> shift_;
  }

 private:
  int shift_;
  uint32_t multiplier_;
};

// A key's page and its slot there. The page number is as it lies in memory: nothing is computed
// from it until it is used, so the load can be asked for long before.
struct KeyPlace {
  uint32_t page_low = 0, page_high = 0;
  uint32_t slot = 0;
  // Whether the page is in [0, n); a negative number is large when taken as unsigned.
  __device__ bool PageBelow(int64_t n) const {
    return page_high == 0 && page_low < static_cast<uint32_t>(n);
  }
};

// Where the keys of a sequence lie in the cache, for one KV head. `sequence` must outlive it.
class KeyRows {
 public:
  __device__ KeyRows(const Params& p, const Divisor& page_size, const Sequence& sequence,
                     int kv_head)
      : p_(p), page_size_(page_size), sequence_(sequence) {
    const int64_t layer = p.cache.layer ? *p.cache.layer : 0;
    layer_exists_ = layer >= 0 && layer < p.cache.num_layers;
    head_offset_ = layer_exists_ ? p.cache.k_strides.At(layer, 0, 0, kv_head) : 0;
  }

  // If not, no key exists.
  __device__ bool layer_exists() const { return layer_exists_; }
  // Of the layer and the head, in elements from cache.k and from cache.v.
  __device__ int64_t head_offset() const { return head_offset_; }

  // Finds a key < len_k.
  __device__ __forceinline__ KeyPlace Find(int key) const {
    KeyPlace place;
    place.slot = sequence_.k_begin + key;
    if (!p_.paged) return place;
    const uint32_t entry = page_size_.Divide(key);
    place.slot = key - entry * static_cast<uint32_t>(p_.cache.page_size);
    const int64_t word = sequence_.index * p_.page_table_stride + entry;
    const auto* const table = static_cast<const uint32_t*>(p_.page_table.data);
    if (p_.page_table.wide) {
      place.page_low = __ldg(table + 2 * word);
      place.page_high = __ldg(table + 2 * word + 1);
    } else {
      place.page_low = __ldg(table + word);
    }
    return place;
  }

  __device__ __forceinline__ bool Exists(const KeyPlace& place) const {
    return place.PageBelow(p_.cache.num_pages);
  }
  // In elements from head_offset(), if the key exists.
  __device__ __forceinline__ int64_t Offset(const KeyPlace& place) const {
    return p_.cache.k_strides.At(0, place.page_low, place.slot, 0);
  }

 private:
  const Params& p_;
  const Divisor& page_size_;
  const Sequence& sequence_;
  int64_t head_offset_;
  bool layer_exists_;
};

// From q . k to the logarithm to base 2 of a weight, x. Usually that is a product with a positive
// factor, which the kernel can fold into its exponentials; otherwise it computes x and takes a
// factor of 1.
template <DType kType>
class Logit {
 public:
  __device__ explicit Logit(const Params& p) : scale_(p.scale), cap_(p.softcap) {}
  __device__ bool folds() const { return !capped() && scale_ > 0; }
  __device__ float factor() const { return folds() ? scale_ * kLog2e : 1.0f; }

  template <int kSize>
  __device__ __forceinline__ void Apply(float (&dots)[kSize]) const {
    if (capped()) {
      const float inner = scale_ / cap_, outer = cap_ * kLog2e;
#pragma unroll
      for (float& x : dots) x = outer * Tanh(x * inner);
    } else {
#pragma unroll
      for (float& x : dots) x *= scale_ * kLog2e;
    }
  }

 private:
  __device__ bool capped() const { return cap_ > 0; }
  // tanh.approx's relative error of 2^-11 would become 2 % of a weight under a softcap of 50. For
  // 16-bit operands an error that is small beside 1 is enough.
  static __device__ __forceinline__ float Tanh(float x) {
    if constexpr (kType == DType::kF32) return tanhf(x);
    return 1.0f - __fdividef(2.0f, 1.0f + __expf(2.0f * x));
  }

  float scale_, cap_;
};

// Whether every row of q, K, V and out begins at a multiple of 16 bytes.
template <class T>
bool RowsAligned(const Params& p) {
  const auto aligned = [](const void* data, std::initializer_list<int64_t> strides) {
    return std::ranges::all_of(strides, [&](int64_t stride) {
      return cuda::AllAligned16(stride * static_cast<int64_t>(sizeof(T)), data);
    });
  };
  const CacheView& c = p.cache;
  return aligned(p.q, {p.q_token_stride, p.q_head_stride}) && aligned(p.out, {p.head_dim}) &&
         aligned(c.k, {c.k_strides.page, c.k_strides.slot, c.k_strides.head, c.k_strides.layer}) &&
         aligned(c.v, {c.v_strides.page, c.v_strides.slot, c.v_strides.head, c.v_strides.layer});
}

}  // namespace intarsia::attention
