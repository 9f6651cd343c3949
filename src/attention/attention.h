// What both attention ops hand to the kernels: one ragged batch over a paged or a dense K and V.
//
//   s[i, j] = scale * q_scale * k_scale * q_i . k_j
//   if softcap > 0: s = softcap * tanh(s / softcap)
//   query i of a sequence stands at position i + len_k - len_q and sees key j if
//     position - left <= j <= position + right  (left, right < 0: open)  and  0 <= j < len_k
//     and, with chunks of c keys, floor(position / c) == floor(j / c)
//   alibi: s -= slope * |position - j|
//   z_i = sum_j exp(s_ij) + exp(sink)
//   out_i = v_scale * sum_j exp(s_ij) v_j / z_i
//   lse_i = ln z_i
//
// A start in cu_seqlens_q or cu_seqlens_k counts as the largest so far, and as no more than there
// are rows. So sequences share neither rows of q nor, in dense K and V, keys, whatever the arrays
// hold; the gradient (backward.h) relies on it.
//
// len_k is what remains behind leftpad_k keys, which count as not there: key j is the one in the
// slot leftpad_k + j of the sequence. A sink is a logit of a head that has no value.
// A row that sees nothing gives out = 0, lse = the sink, or -inf if there is none; every row of q
// outside the sequences (before cu_seqlens_q[0], from cu_seqlens_q[num_seqs] on) gives out = 0,
// lse = -inf.
#pragma once
#include <algorithm>
#include <cstdint>

#include "src/core/cache_layout.h"
#include "src/core/context.h"
#include "src/core/divisor.h"
#include "src/core/index_vector.h"
#include "src/core/scale_view.h"
#include "src/core/status.h"
#include "src/core/tensor_view.h"

namespace intarsia::attention {

// Plain data, passed to CUDA kernels by value. Strides are in elements; the last one is always 1.
struct Params {
  DType dtype = DType::kOther;      // of q; that of K and V is cache.dtype
  DType out_dtype = DType::kOther;  // q's, but for quantized q
  const void* q = nullptr;          // [t, h, d]
  int64_t q_token_stride = 0, q_head_stride = 0;
  void* out = nullptr;   // [t, h, v_head_dim], dense
  float* lse = nullptr;  // [h, t], dense; null: not wanted

  int64_t num_tokens = 0;  // t: rows of q, padding included
  int64_t num_seqs = 0;    // b: the length of seqused_k and of cu_seqlens_q, less one
  int64_t num_heads = 0;   // h
  int64_t head_dim = 0;    // d, of q and K; that of V and out is cache.v_head_dim
  int64_t max_len_k = 0;   // no sequence has more keys: m * s, or rows of k

  IndexVector cu_seqlens_q;     // [b + 1]
  IndexVector cu_seqlens_k;     // [b + 1]; dense K and V only
  IndexVector seqused_k;        // [b]: len_k; absent: from cu_seqlens_k
  IndexVector leftpad_k;        // [b]; absent: 0
  IndexVector num_seqs_device;  // [1]; sequences from this one on are padding; absent: all b count

  // K and V. Paged: page_table is [b, m] and cache is as its name says. Dense: paged is false
  // and cache is one page whose slots are the rows of k, starting at cu_seqlens_k[sequence].
  CacheView cache;
  bool paged = false;  // not the same as a table that is there: one without columns has no address
  IndexVector page_table;
  int64_t page_table_stride = 0;
  int64_t pages_per_seq = 0;  // m

  float scale = 1.0f;
  float softcap = 0.0f;
  int64_t window_left = -1, window_right = -1;  // causal is window_right = 0
  Divisor chunk_divisor{1};             // attention_chunk; as FitCounts sets it, for kernels
  int64_t attention_chunk = 0;          // keys; 0: no chunks. Not in the gradient
  ScaleView q_scale, k_scale, v_scale;  // by sequence and KV head
  ScaleView alibi_slopes;               // by sequence and query head
  const float* sinks = nullptr;         // [h]

  // Partial results of split-KV decode: f32 [splits, row_floats].
  float* workspace = nullptr;
  int64_t max_splits = 1;
  int64_t workspace_floats = 0;  // of a split

  // G = h / hk; as SetGroup sets it, for kernels.
  int group = 1;
  Divisor group_divisor{1};

  int64_t num_kv_heads() const { return cache.num_kv_heads; }
  void SetGroup() {
    group =
        num_kv_heads() > 0 ? static_cast<int>(std::max(num_heads / num_kv_heads(), int64_t{1})) : 1;
    group_divisor = Divisor(group);
  }
};

// Kernels on CUDA, and the gradient's on the CPU too, count query rows, keys, pages and positions
// in 32 bits, with room for the sum of two.
inline constexpr int64_t kMaxCount = int64_t{1} << 30;

// Lengths are clamped to max_len_k; a page number outside the cache counts as masked keys.
Status Run(const Params& params, const CpuContext& context);
Status Run(const Params& params, const CudaContext& context);

}  // namespace intarsia::attention
