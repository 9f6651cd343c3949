#include "src/ops/rotary_embedding_and_cache/rotary_embedding_and_cache.h"

#include "src/core/checked.h"

namespace intarsia {

TensorView RotaryEmbeddingAndCache::Heads(int64_t first, int64_t count) const {
  TensorView heads = qkv;
  heads.dims[1] = count;
  if (qkv.data) heads.data = qkv.as<char>() + first * qkv.stride(1) * Bytes(qkv.dtype);
  return heads;
}

RotaryEmbedding RotaryEmbeddingAndCache::Rotation(const TensorView& turned_key) const {
  return {.positions = positions,
          .query = Heads(0, *num_heads),
          .cos_sin_cache = cos_sin_cache,
          .key = Heads(*num_heads, num_kv_heads()),
          .pair_axes = std::nullopt,
          .head_size = std::nullopt,
          .is_neox = is_neox,
          .rope_dim_offset = rope_dim_offset,
          .query_out = query,
          .key_out = turned_key};
}

FusedQkNormRope RotaryEmbeddingAndCache::NormedQuery() const {
  return {.positions = positions,
          .qkv = Heads(0, *num_heads),
          .cos_sin_cache = cos_sin_cache,
          .q_weight = *q_weight,
          .k_weight = *k_weight,
          .num_heads_q = *num_heads,
          .num_heads_k = 0,
          .eps = eps,
          .is_neox = is_neox,
          .out = query};
}

FusedQkNormRope RotaryEmbeddingAndCache::NormedKey(const TensorView& turned_key) const {
  FusedQkNormRope op = NormedQuery();
  op.qkv = Heads(*num_heads, num_kv_heads());
  op.num_heads_q = 0;
  op.num_heads_k = num_kv_heads();
  op.out = turned_key;
  return op;
}

ReshapeAndCacheFlash RotaryEmbeddingAndCache::CacheWrite(const TensorView& turned_key) const {
  return {.key = turned_key,
          .value = Heads(*num_heads + num_kv_heads(), num_kv_heads()),
          .key_cache = key_cache,
          .value_cache = value_cache,
          .slot_mapping = slot_mapping,
          .layer = layer,
          .k_scale = k_scale,
          .v_scale = v_scale,
          .layout = layout,
          .kv_cache_dtype = kv_cache_dtype,
          .key_cache_out = key_cache_out,
          .value_cache_out = value_cache_out};
}

Status RotaryEmbeddingAndCache::Check() const {
  if (!num_heads) return InvalidArgument("num_heads is missing");
  CacheView cache;
  INTARSIA_RETURN_IF_ERROR(
      MakeCacheView(layout, kv_cache_dtype, key_cache, value_cache, layer, cache));
  const int64_t heads = BoundedSum({*num_heads, BoundedProduct({2, cache.num_kv_heads})});
  if (qkv.dim(1) != heads)
    return InvalidArgument(Text("qkv has ", qkv.dim(1), " heads, expected ", heads, ": num_heads=",
                                *num_heads, " and the cache's hk=", cache.num_kv_heads, " twice"));
  // What the two ops would say of a key and of a query, which are no operands here.
  if (slot_mapping.dim(0) > qkv.dim(0))
    return InvalidArgument(
        Text("slot_mapping has ", slot_mapping.dim(0), " slots but qkv has t=", qkv.dim(0)));
  const TensorView key = Heads(*num_heads, num_kv_heads());  // has the turned key's sizes
  INTARSIA_RETURN_IF_ERROR(Rotation(key).Check());
  if (q_weight.has_value() != k_weight.has_value())
    return InvalidArgument(Text(q_weight ? "k_weight" : "q_weight", " is missing beside ",
                                q_weight ? "q_weight" : "k_weight"));
  if (q_weight) {
    if (rope_dim_offset != 0)
      return InvalidArgument(
          Text("rope_dim_offset is ", rope_dim_offset, ", expected 0 with q_weight"));
    INTARSIA_RETURN_IF_ERROR(NormedKey(key).Check());
  }
  return CacheWrite(key).Check();
}

}  // namespace intarsia
