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
  Optional num_seqs, layer, sinks, k_scale, v_scale, alibi_slopes;
  std::optional<float> scale;
  std::optional<int64_t> sliding_window;
  float softcap = 0.0f;
  std::string_view layout = "NHD";
  std::string_view kv_cache_dtype = "auto";
  bool return_lse = false;
  int64_t attention_chunk = 0;
  TensorView out, lse, workspace;

  static constexpr auto kSpec = MakeSpec(
      "paged_attention", "Causal attention over a paged KV cache, for decode and mixed batches.",
      "Kwon et al. 2023, arXiv:2309.06180; torch_xla's ragged_paged_attention",
      In("query", &PagedAttention::query, "t h d", "T", "queries, sequence after sequence")
          .Takes(Access::kRows),
      In("key_cache", &PagedAttention::key_cache, "@key_cache", "T|f8e4m3fn|f8e5m2|u8",
         "pages of keys, or of both")
          .Takes(Access::kRows),
      In("value_cache", &PagedAttention::value_cache, "@value_cache", "key_cache",
         "pages of values")
          .Takes(Access::kRows),
      In("seqused_k", &PagedAttention::seqused_k, "b", "i32|i64",
         "keys of each sequence, this step's included"),
      In("block_table", &PagedAttention::block_table, "b m", "i32|i64", "pages of each sequence")
          .IndexesOrNegative("p"),
      In("cu_seqlens_q", &PagedAttention::cu_seqlens_q, "b+1", "i32|i64",
         "where each sequence starts in query"),
      In("num_seqs", &PagedAttention::num_seqs, "1", "i32|i64",
         "how many sequences are real, clamped to 0 to b; default all"),
      In("layer", &PagedAttention::layer, "", "i32",
         "which layer of a cache with a leading layer axis")
          .Indexes("l"),
      In("sinks", &PagedAttention::sinks, "h", "f32",
         "a logit of each head in the denominator, without a value"),
      In("k_scale", &PagedAttention::k_scale, "1 | hk | b hk", "f32",
         "what fp8 keys are to be multiplied by; default 1"),
      In("v_scale", &PagedAttention::v_scale, "1 | hk | b hk", "f32", "the same for values"),
      In("alibi_slopes", &PagedAttention::alibi_slopes, "h | b h", "f32",
         "what a score loses for each key between the query's own and the one it meets"),
      Attr("scale", &PagedAttention::scale, "of the scores; default d ** -0.5"),
      Attr("sliding_window", &PagedAttention::sliding_window,
           "keys that a query sees, its own included; default all"),
      Attr("softcap", &PagedAttention::softcap, "softcap * tanh(score / softcap); 0: none"),
      Attr("layout", &PagedAttention::layout, "order of the cache's axes")
          .OneOf(kLayoutChoices)
          .OrCacheAxes(),
      Attr("return_lse", &PagedAttention::return_lse, "also return lse"),
      Attr("kv_cache_dtype", &PagedAttention::kv_cache_dtype,
           "how a cache of dtype u8 is to be read")
          .OneOf(kKvCacheDTypes),
      Attr("attention_chunk", &PagedAttention::attention_chunk,
           "keys of a chunk: a query sees those of its own alone; 0: all"),
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
