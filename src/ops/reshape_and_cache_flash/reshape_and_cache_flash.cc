#include "src/ops/reshape_and_cache_flash/reshape_and_cache_flash.h"

namespace intarsia {

Status ReshapeAndCacheFlash::Check() const {
  CacheView cache;
  if (Status s = MakeCacheView(layout, key_cache, value_cache, layer, cache); !s.ok())
    return InvalidArgument(Text("reshape_and_cache_flash: ", s.message));
  if (slot_mapping.dim(0) > key.dim(0))
    return InvalidArgument(Text("reshape_and_cache_flash: slot_mapping has ", slot_mapping.dim(0),
                                " slots but key has t=", key.dim(0)));
  return {};
}

CacheView ReshapeAndCacheFlash::Cache() const {
  CacheView cache;
  MakeCacheView(layout, key_cache, value_cache, layer, cache);
  return cache;
}

}  // namespace intarsia
