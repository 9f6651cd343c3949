#include <cstring>

#include "src/core/cpu/rows.h"
#include "src/core/cpu/simd.h"
#include "src/core/index_vector.h"
#include "src/ops/reshape_and_cache_flash/reshape_and_cache_flash.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const ReshapeAndCacheFlash& op, const CpuContext& context) {
  CacheView cache;
  INTARSIA_RETURN_IF_ERROR(op.Cache(cache));
  const int64_t slots = cache.num_pages * cache.page_size, layer = cache.layer ? *cache.layer : 0;
  if (layer < 0 || layer >= cache.num_layers || cache.head_dim == 0) return {};
  const int64_t bytes = Bytes(cache.dtype), row_bytes = cache.head_dim * bytes;
  const IndexVector slot_mapping = ToIndexVector(op.slot_mapping);
  ForRows(context, op.slot_mapping.dim(0), cache.num_kv_heads * cache.head_dim, [&](int64_t token) {
    const int64_t slot = slot_mapping.At(token);
    if (slot < 0 || slot >= slots) return;
    const auto copy = [&](const TensorView& from, void* pages, const CacheStrides& strides) {
      const int64_t at = strides.At(layer, slot / cache.page_size, slot % cache.page_size, 0);
      for (int64_t head = 0; head < cache.num_kv_heads; ++head)
        std::memcpy(
            static_cast<char*>(pages) + (at + head * strides.head) * bytes,
            from.as<const char>() + (token * from.stride(0) + head * from.stride(1)) * bytes,
            static_cast<size_t>(row_bytes));
    };
    copy(op.key, cache.k, cache.k_strides);
    copy(op.value, cache.v, cache.v_strides);
  });
  return {};
}

}  // namespace intarsia
