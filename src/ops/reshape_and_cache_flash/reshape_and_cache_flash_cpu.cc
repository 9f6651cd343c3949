#include <cstring>

#include "src/core/cpu/rows.h"
#include "src/core/cpu/simd_8bit.h"
#include "src/core/dispatch.h"
#include "src/core/index_vector.h"
#include "src/core/scale_view.h"
#include "src/ops/reshape_and_cache_flash/reshape_and_cache_flash.h"

namespace intarsia {
namespace {

// Where a token's heads come from and go to: bytes, head after head at these distances.
struct Heads {
  const char* from;
  char* to;
  int64_t from_stride, to_stride;
};

// copy(heads, scale) for K and for V of each token that has a slot.
template <class Copy>
void ForTokens(const ReshapeAndCacheFlash& op, const CacheView& cache, const CpuContext& context,
               Copy copy) {
  const int64_t slots = cache.num_pages * cache.page_size, layer = cache.layer ? *cache.layer : 0;
  if (layer < 0 || layer >= cache.num_layers || op.key.size() == 0) return;
  const int64_t from_bytes = Bytes(op.key.dtype), to_bytes = Bytes(cache.dtype);
  const IndexVector slot_mapping = ToIndexVector(op.slot_mapping);
  const ScaleView k_scale = ToScaleView(op.k_scale), v_scale = ToScaleView(op.v_scale);
  ForRows(context, op.slot_mapping.dim(0), cache.num_kv_heads * cache.head_dim, [&](int64_t token) {
    const int64_t slot = slot_mapping.At(token);
    if (slot < 0 || slot >= slots) return;
    const auto copy_token = [&](const TensorView& from, void* pages, const CacheStrides& strides,
                                const ScaleView& scale) {
      const int64_t at = strides.At(layer, slot / cache.page_size, slot % cache.page_size, 0);
      copy(Heads{from.as<const char>() + token * from.stride(0) * from_bytes,
                 static_cast<char*>(pages) + at * to_bytes, from.stride(1) * from_bytes,
                 strides.head * to_bytes},
           scale);
    };
    copy_token(op.key, cache.k, cache.k_strides, k_scale);
    copy_token(op.value, cache.v, cache.v_strides, v_scale);
  });
}

}  // namespace

template <>
Status RunCpu<kIsa>(const ReshapeAndCacheFlash& op, const CpuContext& context) {
  CacheView cache;
  INTARSIA_RETURN_IF_ERROR(op.Cache(cache));
  const int64_t num_heads = cache.num_kv_heads, d = cache.head_dim;
  if (cache.dtype == op.key.dtype) {
    const auto bytes = static_cast<size_t>(d * Bytes(cache.dtype));
    ForTokens(op, cache, context, [=](const Heads& heads, const ScaleView&) {
      for (int64_t head = 0; head < num_heads; ++head)
        std::memcpy(heads.to + head * heads.to_stride, heads.from + head * heads.from_stride,
                    bytes);
    });
    return {};
  }
  return DispatchDType<kF32, kF16, kBF16>("key", op.key.dtype, [&]<DType kKey>() -> Status {
    return DispatchDType<kF8E4M3, kF8E5M2>("key_cache", cache.dtype, [&]<DType kCache>() -> Status {
      ForTokens(op, cache, context, [=](const Heads& heads, const ScaleView& scales) {
        for (int64_t head = 0; head < num_heads; ++head) {
          const auto* from =
              reinterpret_cast<const CpuT<kKey>*>(heads.from + head * heads.from_stride);
          auto* to = reinterpret_cast<CpuT<kCache>*>(heads.to + head * heads.to_stride);
          const VecF scale = Splat(scales.At(0, head));
          ForLanes(d, [&](int64_t i, int lanes) {
            StoreN(to + i, LoadN(from + i, lanes) / scale, lanes);
          });
        }
      });
      return {};
    });
  });
}

}  // namespace intarsia
