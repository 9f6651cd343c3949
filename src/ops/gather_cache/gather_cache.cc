#include "src/ops/gather_cache/gather_cache.h"

namespace intarsia {

DType GatherCache::stored() const {
  if (cache.dtype != DType::kU8) return cache.dtype;
  if (!converts()) return DType::kU8;
  if (kv_cache_dtype == "auto") return DType::kU8;  // Check refuses it
  return kv_cache_dtype == "fp8_e5m2" ? DType::kF8E5M2 : DType::kF8E4M3;
}

Status GatherCache::Check() const {
  if (!converts()) {
    if (scale)
      return InvalidArgument(Text("scale is given, but cache and dst both have dtype ",
                                  Name(cache.dtype), ", expected an fp8 cache of another one"));
    return {};
  }
  if (cache.dtype == DType::kU8 && kv_cache_dtype == "auto")
    return InvalidArgument(
        "kv_cache_dtype is auto, but cache has dtype u8, expected fp8_e4m3 or fp8_e5m2");
  if (!IsFp8(stored()) || IsFp8(dst.dtype) || dst.dtype == DType::kU8)
    return InvalidArgument(Text("dst has dtype ", Name(dst.dtype), " but cache has ",
                                Name(cache.dtype),
                                ", expected the same, or f32, f16 or bf16 from an fp8 type"));
  return {};
}

}  // namespace intarsia
