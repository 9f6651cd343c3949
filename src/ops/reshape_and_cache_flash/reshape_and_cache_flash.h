// cache[slot / s, slot % s, head] = (key, value)[token, head] for slot = slot_mapping[token], in
// place. A slot that is negative or beyond the cache is skipped, as are tokens past slot_mapping.
#pragma once
#include "src/core/cache_layout.h"
#include "src/core/op.h"

namespace intarsia {

struct ReshapeAndCacheFlash {
  TensorView key, value, key_cache;
  Optional value_cache;
  TensorView slot_mapping;
  Optional layer;
  std::string_view layout = "NHD";
  TensorView key_cache_out, value_cache_out;

  static constexpr auto kSpec = MakeSpec(
      "reshape_and_cache_flash", "Writes new keys and values into their slots of a paged KV cache.",
      "vLLM's _C_cache_ops::reshape_and_cache_flash",
      In("key", &ReshapeAndCacheFlash::key, "t hk d", "T", "new keys").Takes(Access::kRows),
      In("value", &ReshapeAndCacheFlash::value, "t hk d", "T", "new values").Takes(Access::kRows),
      In("key_cache", &ReshapeAndCacheFlash::key_cache, "@key_cache", "T",
         "pages of keys, or of both")
          .Takes(Access::kRows),
      In("value_cache", &ReshapeAndCacheFlash::value_cache, "@value_cache", "T", "pages of values")
          .Takes(Access::kRows),
      In("slot_mapping", &ReshapeAndCacheFlash::slot_mapping, "slots", "i32|i64",
         "page * s + offset of each of the first tokens; negative: skip")
          .IndexesOrNegative("p*s"),
      In("layer", &ReshapeAndCacheFlash::layer, "", "i32",
         "which layer of a cache with a leading layer axis")
          .Indexes("l"),
      Attr("layout", &ReshapeAndCacheFlash::layout, "order of the cache's axes")
          .OneOf(kLayoutChoices),
      Out("key_cache", &ReshapeAndCacheFlash::key_cache_out, "=key_cache", "T", "the same pages")
          .Alias("key_cache"),
      Out("value_cache", &ReshapeAndCacheFlash::value_cache_out, "=value_cache", "T",
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
