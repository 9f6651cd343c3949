#include "src/ops/reshape_and_cache_flash/reshape_and_cache_flash.h"

namespace intarsia {

Status ReshapeAndCacheFlash::Check() const {
  CacheView cache;
  INTARSIA_RETURN_IF_ERROR(Cache(cache));
  if (slot_mapping.dim(0) > key.dim(0))
    return InvalidArgument(
        Text("slot_mapping has ", slot_mapping.dim(0), " slots but key has t=", key.dim(0)));
  if ((k_scale || v_scale) && cache.dtype == key.dtype)
    return InvalidArgument(Text(k_scale ? "k_scale" : "v_scale",
                                " is given, but key_cache has dtype ", Name(cache.dtype),
                                ", expected an fp8 type"));
  return {};
}

Status ReshapeAndCacheFlash::Cache(CacheView& cache) const {
  return MakeCacheView(layout, kv_cache_dtype, key_cache, value_cache, layer, cache);
}

}  // namespace intarsia
