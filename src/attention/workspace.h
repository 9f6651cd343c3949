// The workspace of attention, of the forward pass, which split-KV decode alone uses: a function of
// shapes.
#pragma once
#include "src/attention/attention.h"
#include "src/attention/decode_plan.h"

namespace intarsia::attention {

inline decode::StaticShape ShapeOf(const Params& params) {
  return {.num_tokens = params.num_tokens,
          .num_seqs = params.num_seqs,
          .num_heads = params.num_heads,
          .num_kv_heads = params.num_kv_heads(),
          .v_head_dim = params.cache.v_head_dim,
          .max_len_k = params.max_len_k};
}

// Dims of the workspace for these shapes.
inline std::array<int64_t, 2> WorkspaceDims(const Params& params) {
  return decode::WorkspaceDims(ShapeOf(params));
}

}  // namespace intarsia::attention
