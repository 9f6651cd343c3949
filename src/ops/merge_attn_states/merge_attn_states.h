// Attention over two disjoint sets of keys, from the results of each:
//   lse = ln(e^p + e^s),   out = e^(p - lse) prefix_out + e^(s - lse) suffix_out
// with p, s = prefix_lse, suffix_lse, computed in f32 relative to the larger one. A set of which a
// row sees nothing has lse -inf, or +inf as FlashAttention says it: it counts for nothing, whatever
// its out holds. If both are empty, out is prefix_out and lse -inf.
#pragma once
#include "src/core/op.h"

namespace intarsia {

struct MergeAttnStates {
  TensorView prefix_out, prefix_lse, suffix_out, suffix_lse;
  TensorView out, lse;

  static constexpr auto kSpec = MakeSpec(
      "merge_attn_states", "Attention over two sets of keys, from the results over each.",
      "FlashInfer, arXiv:2501.01005, section 2.2; vLLM's _C::merge_attn_states",
      In("prefix_out", &MergeAttnStates::prefix_out, "t h d", "T", "attention over the one set"),
      In("prefix_lse", &MergeAttnStates::prefix_lse, "h t", "f32",
         "its natural log of the sum of exponentials; -inf or +inf: no key"),
      In("suffix_out", &MergeAttnStates::suffix_out, "t h d", "T", "attention over the other set"),
      In("suffix_lse", &MergeAttnStates::suffix_lse, "h t", "f32", "as prefix_lse"),
      Out("out", &MergeAttnStates::out, "t h d", "T", "attention over both"),
      Out("lse", &MergeAttnStates::lse, "h t", "f32", "of both; -inf where neither has a key"));

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
