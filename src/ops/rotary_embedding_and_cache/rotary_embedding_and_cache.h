// Of the heads [query, key, value] of each token: query and key are turned as rotary_embedding does
// it, and key and value written into their slot as reshape_and_cache_flash does it; the same bits.
// With q_weight and k_weight, query and key are normed and turned as fused_qk_norm_rope does it; on
// CUDA the same bits where pages lie in vectors as qkv does, else its sum may be added otherwise.
// On CUDA in one pass, without the parts of the product and the turned key in memory between.
#pragma once
#include "src/ops/fused_qk_norm_rope/fused_qk_norm_rope.h"
#include "src/ops/reshape_and_cache_flash/reshape_and_cache_flash.h"
#include "src/ops/rotary_embedding/rotary_embedding.h"

namespace intarsia {

struct RotaryEmbeddingAndCache {
  TensorView positions, qkv, cos_sin_cache, key_cache;
  Optional value_cache;
  TensorView slot_mapping;
  Optional layer, k_scale, v_scale, q_weight, k_weight;
  std::optional<int64_t> num_heads;
  float eps = 1e-6f;
  bool is_neox = true;
  int64_t rope_dim_offset = 0;
  std::string_view layout = "NHD";
  std::string_view kv_cache_dtype = "auto";
  TensorView query, key_cache_out, value_cache_out;

  static constexpr auto kSpec = MakeSpec(
      "rotary_embedding_and_cache",
      "Rotary position embedding of a product of Q, K and V, whose K and V go to a paged KV cache.",
      "rotary_embedding and reshape_and_cache_flash in one, or fused_qk_norm_rope and that; "
      "AITER's "
      "fused_qk_rope_reshape_and_cache",
      In("positions", &RotaryEmbeddingAndCache::positions, "t", "i32|i64", "position of each token")
          .Indexes("max_pos"),
      In("qkv", &RotaryEmbeddingAndCache::qkv, "t heads d", "T",
         "num_heads query heads, hk key heads, hk value heads")
          .Takes(Access::kRows),
      In("cos_sin_cache", &RotaryEmbeddingAndCache::cos_sin_cache, "max_pos r", "f32|f16|bf16",
         "cosines, then sines, of r/2 angles a position"),
      In("key_cache", &RotaryEmbeddingAndCache::key_cache, "@key_cache", "T|f8e4m3fn|f8e5m2|u8",
         "pages of keys, or of both")
          .Takes(Access::kRows),
      In("value_cache", &RotaryEmbeddingAndCache::value_cache, "@value_cache", "key_cache",
         "pages of values")
          .Takes(Access::kRows),
      In("slot_mapping", &RotaryEmbeddingAndCache::slot_mapping, "slots", "i32|i64",
         "page * s + offset of each of the first tokens; negative: skip")
          .IndexesOrNegative("p*s"),
      In("layer", &RotaryEmbeddingAndCache::layer, "", "i32",
         "which layer of a cache with a leading layer axis")
          .Indexes("l"),
      In("k_scale", &RotaryEmbeddingAndCache::k_scale, "1 | hk", "f32",
         "what keys are divided by before they are stored in fp8; default 1"),
      In("v_scale", &RotaryEmbeddingAndCache::v_scale, "1 | hk", "f32", "the same for values"),
      In("q_weight", &RotaryEmbeddingAndCache::q_weight, "d", "T|f32",
         "scale of a query head's columns, where heads are normed before they are turned"),
      In("k_weight", &RotaryEmbeddingAndCache::k_weight, "d", "T|f32",
         "the same for key heads; with q_weight"),
      Attr("num_heads", &RotaryEmbeddingAndCache::num_heads,
           "how many of the heads are queries; needed"),
      Attr("eps", &RotaryEmbeddingAndCache::eps,
           "added to the mean square of a head, with q_weight")
          .NotNegative(),
      Attr("is_neox", &RotaryEmbeddingAndCache::is_neox,
           "pairs (i, i + r/2); false: pairs (2i, 2i + 1)"),
      Attr("rope_dim_offset", &RotaryEmbeddingAndCache::rope_dim_offset,
           "dimensions of a head before the first pair"),
      Attr("layout", &RotaryEmbeddingAndCache::layout, "order of the cache's axes")
          .OneOf(kLayoutChoices)
          .OrCacheAxes(),
      Attr("kv_cache_dtype", &RotaryEmbeddingAndCache::kv_cache_dtype,
           "what a cache of dtype u8 holds")
          .OneOf(kKvCacheDTypes),
      Out("query", &RotaryEmbeddingAndCache::query, "t num_heads d", "T", "turned query heads"),
      Out("key_cache", &RotaryEmbeddingAndCache::key_cache_out, "=key_cache", "key_cache",
          "the same pages")
          .Alias("key_cache"),
      Out("value_cache", &RotaryEmbeddingAndCache::value_cache_out, "=value_cache", "value_cache",
          "the same pages")
          .Alias("value_cache")
          .When("value_cache"));

  Status Check() const;
  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;

  int64_t num_kv_heads() const { return (qkv.dim(1) - *num_heads) / 2; }
  // The ops that this one is. turned_key: where the key stands between them, [t, hk, d]. With
  // q_weight, queries and keys are normed and turned, each by an op of their own.
  RotaryEmbedding Rotation(const TensorView& turned_key) const;
  FusedQkNormRope NormedQuery() const;
  FusedQkNormRope NormedKey(const TensorView& turned_key) const;
  ReshapeAndCacheFlash CacheWrite(const TensorView& turned_key) const;

 private:
  TensorView Heads(int64_t first, int64_t count) const;
};

}  // namespace intarsia
