// Attention of every query of a ragged batch to the keys of its sequence; src/attention/attention.h
// has the mathematics. Causal and windows are aligned at the bottom right: query i of a sequence
// stands at position i + len_k - len_q.
#pragma once
#include "src/attention/attention.h"
#include "src/core/op.h"

namespace intarsia {

struct FlashAttnVarlen {
  TensorView q, k;
  Optional v;
  TensorView cu_seqlens_q;
  Optional cu_seqlens_k, seqused_k, block_table, layer, alibi_slopes, sinks, leftpad_k;
  Optional q_scale, k_scale, v_scale;
  std::optional<float> scale;
  bool is_causal = false;
  int64_t window_left = -1, window_right = -1;
  float softcap = 0.0f;
  std::string_view layout = "NHD";
  std::string_view kv_cache_dtype = "auto";
  std::string_view out_dtype = "auto";
  bool return_lse = false;
  int64_t attention_chunk = 0;
  TensorView out, lse, workspace;

  static constexpr auto kSpec = MakeSpec(
      "flash_attn_varlen",
      "Attention over a ragged batch, its keys and values dense or in a paged cache.",
      "Dao 2023, arXiv:2307.08691; flash_attn_varlen_func of FlashAttention",
      In("q", &FlashAttnVarlen::q, "tq h d", "T|f8e4m3fn|f8e5m2",
         "queries, sequence after sequence")
          .Takes(Access::kRows),
      In("k", &FlashAttnVarlen::k, "block_table: @key_cache | !block_table: tk hk d",
         "T|f8e4m3fn|f8e5m2|u8", "keys; paged: the cache")
          .Takes(Access::kRows),
      In("v", &FlashAttnVarlen::v, "block_table: @value_cache | !block_table: tk hk dv", "k",
         "values; absent if the cache holds both")
          .Takes(Access::kRows),
      In("cu_seqlens_q", &FlashAttnVarlen::cu_seqlens_q, "b+1", "i32|i64",
         "where each sequence starts in q"),
      In("cu_seqlens_k", &FlashAttnVarlen::cu_seqlens_k,
         "block_table: any_length | !block_table: b+1", "i32|i64",
         "where each sequence starts in k; ignored when paged"),
      In("seqused_k", &FlashAttnVarlen::seqused_k, "b", "i32|i64", "keys of each sequence"),
      In("block_table", &FlashAttnVarlen::block_table, "b m", "i32|i64", "pages of each sequence")
          .IndexesOrNegative("p"),
      In("layer", &FlashAttnVarlen::layer, "", "i32",
         "which layer of a cache with a leading layer axis")
          .Indexes("l"),
      In("alibi_slopes", &FlashAttnVarlen::alibi_slopes, "h | b h", "f32",
         "what a score loses for each key between the query's own and the one it meets"),
      In("sinks", &FlashAttnVarlen::sinks, "h", "f32",
         "a logit of each head in the denominator, without a value"),
      In("leftpad_k", &FlashAttnVarlen::leftpad_k, "b", "i32|i64",
         "keys at the start of each sequence that count as not there"),
      In("q_scale", &FlashAttnVarlen::q_scale, "1 | hk | b hk", "f32",
         "what fp8 queries are to be multiplied by; default 1"),
      In("k_scale", &FlashAttnVarlen::k_scale, "1 | hk | b hk", "f32",
         "what fp8 keys are to be multiplied by; default 1"),
      In("v_scale", &FlashAttnVarlen::v_scale, "1 | hk | b hk", "f32", "the same for values"),
      Attr("scale", &FlashAttnVarlen::scale, "of the scores; default d ** -0.5"),
      Attr("is_causal", &FlashAttnVarlen::is_causal, "a query sees no later key"),
      Attr("window_left", &FlashAttnVarlen::window_left,
           "keys seen before the query's own; -1: all"),
      Attr("window_right", &FlashAttnVarlen::window_right,
           "keys seen after the query's own; -1: all"),
      Attr("softcap", &FlashAttnVarlen::softcap, "softcap * tanh(score / softcap); 0: none"),
      Attr("layout", &FlashAttnVarlen::layout, "order of the cache's axes")
          .OneOf(kLayoutChoices)
          .OrCacheAxes(),
      Attr("return_lse", &FlashAttnVarlen::return_lse, "also return lse"),
      Attr("kv_cache_dtype", &FlashAttnVarlen::kv_cache_dtype,
           "how a cache of dtype u8 is to be read")
          .OneOf(kKvCacheDTypes),
      Attr("out_dtype", &FlashAttnVarlen::out_dtype, "of out if q is fp8; \"auto\" is bf16")
          .OneOf("auto|f16|bf16"),
      Attr("attention_chunk", &FlashAttnVarlen::attention_chunk,
           "keys of a chunk: a query sees those of its own alone; 0: all"),
      Out("out", &FlashAttnVarlen::out, "block_table: tq h d | !block_table: tq h dv", "out_dtype",
          "weighted values"),
      Out("lse", &FlashAttnVarlen::lse, "h tq", "f32", "natural log of the sum of exponentials")
          .When("return_lse"),
      Workspace("workspace", &FlashAttnVarlen::workspace));

  Status Check() const;
  std::array<int64_t, 2> WorkspaceDims() const;
  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;

  Status ToParams(attention::Params& params) const;
};

}  // namespace intarsia
