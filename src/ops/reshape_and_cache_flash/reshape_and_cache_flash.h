// cache[slot / s, slot % s, head] = (key, value)[token, head] for slot = slot_mapping[token], in
// place. A slot that is negative or beyond the cache is skipped, as are tokens past slot_mapping.
// An fp8 cache holds satfinite((key, value)[token, head] / scale[head]), rounded to nearest even.
#pragma once
#include "src/core/cache_layout.h"
#include "src/core/op.h"

namespace intarsia {

struct ReshapeAndCacheFlash {
  TensorView key, value, key_cache;
  Optional value_cache;
  TensorView slot_mapping;
  Optional layer, k_scale, v_scale;
  std::string_view layout = "NHD";
  std::string_view kv_cache_dtype = "auto";
  TensorView key_cache_out, value_cache_out;

  static constexpr auto kSpec = MakeSpec(
      "reshape_and_cache_flash", "Writes new keys and values into their slots of a paged KV cache.",
      "vLLM's _C_cache_ops::reshape_and_cache_flash",
      In("key", &ReshapeAndCacheFlash::key, "t hk d", "T", "new keys").Takes(Access::kRows),
      In("value", &ReshapeAndCacheFlash::value, "t hk d", "T", "new values").Takes(Access::kRows),
      In("key_cache", &ReshapeAndCacheFlash::key_cache, "@key_cache", "T|f8e4m3fn|f8e5m2|u8",
         "pages of keys, or of both")
          .Takes(Access::kRows),
      In("value_cache", &ReshapeAndCacheFlash::value_cache, "@value_cache", "key_cache",
         "pages of values")
          .Takes(Access::kRows),
      In("slot_mapping", &ReshapeAndCacheFlash::slot_mapping, "slots", "i32|i64",
         "page * s + offset of each of the first tokens; negative: skip")
          .IndexesOrNegative("p*s"),
      In("layer", &ReshapeAndCacheFlash::layer, "", "i32",
         "which layer of a cache with a leading layer axis")
          .Indexes("l"),
      In("k_scale", &ReshapeAndCacheFlash::k_scale, "1 | hk", "f32",
         "what keys are divided by before they are stored in fp8; default 1"),
      In("v_scale", &ReshapeAndCacheFlash::v_scale, "1 | hk", "f32", "the same for values"),
      Attr("layout", &ReshapeAndCacheFlash::layout, "order of the cache's axes")
          .OneOf(kLayoutChoices)
          .OrCacheAxes(),
      Attr("kv_cache_dtype", &ReshapeAndCacheFlash::kv_cache_dtype,
           "what a cache of dtype u8 holds")
          .OneOf(kKvCacheDTypes),
      Out("key_cache", &ReshapeAndCacheFlash::key_cache_out, "=key_cache", "key_cache",
          "the same pages")
          .Alias("key_cache"),
      Out("value_cache", &ReshapeAndCacheFlash::value_cache_out, "=value_cache", "value_cache",
          "the same pages")
          .Alias("value_cache")
          .When("value_cache"));

  Status Check() const;
  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;

  // The cache that the call writes to.
  Status Cache(CacheView& cache) const;
};

}  // namespace intarsia
