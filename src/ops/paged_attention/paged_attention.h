// Causal attention of the newest queries of a ragged batch to a paged KV cache that already holds
// their own keys; src/attention/attention.h has the mathematics. Sequences from num_seqs on are
// padding, so that one compiled program serves any batch up to b.
#pragma once
#include "src/attention/attention.h"
#include "src/core/op.h"

namespace intarsia {

struct PagedAttention {
  TensorView query, key_cache;
  Optional value_cache;
  TensorView seqused_k, block_table, cu_seqlens_q;
  Optional num_seqs, layer;
  std::optional<float> scale;
  std::optional<int64_t> sliding_window;
  float softcap = 0.0f;
  std::string_view layout = "NHD";
  bool return_lse = false;
  TensorView out, lse, workspace;

  static constexpr auto kSpec = MakeSpec(
      "paged_attention", "Causal attention over a paged KV cache, for decode and mixed batches.",
      "Kwon et al. 2023, arXiv:2309.06180; torch_xla's ragged_paged_attention",
      In("query", &PagedAttention::query, "t h d", "T", "queries, sequence after sequence")
          .Takes(Access::kRows),
      In("key_cache", &PagedAttention::key_cache, "@key_cache", "T", "pages of keys, or of both")
          .Takes(Access::kRows),
      In("value_cache", &PagedAttention::value_cache, "@value_cache", "T", "pages of values")
          .Takes(Access::kRows),
      In("seqused_k", &PagedAttention::seqused_k, "b", "i32|i64",
         "keys of each sequence, this step's included"),
      In("block_table", &PagedAttention::block_table, "b m", "i32|i64", "pages of each sequence")
          .IndexesOrNegative("p"),
      In("cu_seqlens_q", &PagedAttention::cu_seqlens_q, "b+1", "i32|i64",
         "where each sequence starts in query"),
      In("num_seqs", &PagedAttention::num_seqs, "1", "i32|i64",
         "how many sequences are real; default all"),
      In("layer", &PagedAttention::layer, "", "i32",
         "which layer of a cache with a leading layer axis")
          .Indexes("l"),
      Attr("scale", &PagedAttention::scale, "of the scores; default d ** -0.5"),
      Attr("sliding_window", &PagedAttention::sliding_window,
           "keys that a query sees, its own included; default all"),
      Attr("softcap", &PagedAttention::softcap, "softcap * tanh(score / softcap); 0: none"),
      Attr("layout", &PagedAttention::layout, "order of the cache's axes").OneOf(kLayoutChoices),
      Attr("return_lse", &PagedAttention::return_lse, "also return lse"),
      Out("out", &PagedAttention::out, "t h d", "T", "weighted values"),
      Out("lse", &PagedAttention::lse, "h t", "f32", "natural log of the sum of exponentials")
          .When("return_lse"),
      Workspace("workspace", &PagedAttention::workspace));

  Status Check() const;
  std::array<int64_t, 2> WorkspaceDims() const;
  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;

  Status ToParams(attention::Params& params) const;
};

}  // namespace intarsia
