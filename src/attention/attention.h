// What both attention ops hand to the kernels: one ragged batch over a paged or a dense K and V.
//
//   s[i, j] = scale * q_i . k_j;  if softcap > 0: s = softcap * tanh(s / softcap)
//   query i of a sequence stands at position i + len_k - len_q and sees key j if
//     position - left <= j <= position + right  (left, right < 0: open)  and  0 <= j < len_k
//   out_i = sum_j exp(s_ij) v_j / sum_j exp(s_ij);  lse_i = ln sum_j exp(s_ij)
// A row that sees nothing gives out = 0, lse = -inf, and so does every row of q outside the
// sequences (beyond cu_seqlens_q[num_seqs]).
#pragma once
#include <cstdint>

#include "src/core/cache_layout.h"
#include "src/core/context.h"
#include "src/core/index_vector.h"
#include "src/core/status.h"
#include "src/core/tensor_view.h"

namespace intarsia::attention {

// Plain data, passed to CUDA kernels by value. Strides are in elements; the last one is always 1.
struct Params {
  DType dtype = DType::kOther;  // of q, k, v and out
  const void* q = nullptr;      // [t, h, d]
  int64_t q_token_stride = 0, q_head_stride = 0;
  void* out = nullptr;   // [t, h, d], dense
  float* lse = nullptr;  // [h, t], dense; null: not wanted

  int64_t num_tokens = 0;  // t: rows of q, padding included
  int64_t num_seqs = 0;    // b: the length of seqused_k and of cu_seqlens_q, less one
  int64_t num_heads = 0;   // h
  int64_t head_dim = 0;    // d
  int64_t max_len_k = 0;   // no sequence has more keys: m * s, or rows of k

  IndexVector cu_seqlens_q;     // [b + 1]
  IndexVector cu_seqlens_k;     // [b + 1]; dense K and V only
  IndexVector seqused_k;        // [b]: len_k; absent: from cu_seqlens_k
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

  // Partial results of split-KV decode: f32 [splits, row_floats].
  float* workspace = nullptr;
  int64_t max_splits = 1;
  int64_t workspace_floats = 0;  // of a split

  int64_t num_kv_heads() const { return cache.num_kv_heads; }
};

// Lengths are clamped to max_len_k; a page number outside the cache counts as masked keys.
Status Run(const Params& params, const CpuContext& context);
Status Run(const Params& params, const CudaContext& context);

}  // namespace intarsia::attention
