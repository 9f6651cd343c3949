#include "src/core/cache_layout.h"

#include <algorithm>
#include <vector>

namespace intarsia {
namespace {

std::vector<std::string_view> Letters(std::string_view dims) {
  std::vector<std::string_view> letters;
  for (; !dims.empty(); dims.remove_prefix(std::min(dims.size(), letters.back().size() + 1)))
    letters.push_back(dims.substr(0, dims.find(' ')));
  return letters;
}

}  // namespace

std::string ExpandCacheDims(std::string_view dims) {
  const size_t at = dims.find('@');
  if (at == dims.npos) return std::string(dims);
  const std::string_view prefix = dims.substr(0, at);
  std::string text;
  for (const CacheLayout& layout : kCacheLayouts) {
    if (dims.substr(at) == "@value_cache" && layout.value != ValuePlace::kOwnArray) continue;
    text +=
        Text(text.empty() ? "" : " | ", prefix, "layout=", layout.name, ": layer?l ", layout.dims);
  }
  return text;
}

namespace {

Status ElementDType(std::string_view kv_cache_dtype, DType array, DType& elements) {
  elements = array;
  if (kv_cache_dtype == "auto")
    return array == DType::kU8 ? InvalidArgument(
                                     "kv_cache_dtype is auto but key_cache has dtype u8, expected "
                                     "fp8_e4m3 or fp8_e5m2")
                               : Status();
  elements = kv_cache_dtype == "fp8_e5m2" ? DType::kF8E5M2 : DType::kF8E4M3;
  if (array == DType::kU8 || array == elements) return {};
  return InvalidArgument(Text("key_cache has dtype ", Name(array), ", expected ", Name(elements),
                              " or u8 for kv_cache_dtype ", kv_cache_dtype));
}

// The strides of an array whose axes stand in the order of `dims`.
CacheStrides StridesOf(const TensorView& array, std::string_view dims, bool has_layer) {
  CacheStrides strides;
  int axis = 0;
  if (has_layer) strides.layer = array.stride(axis++);
  for (const std::string_view letter : Letters(dims)) {
    const int64_t stride = array.stride(axis++);
    if (letter == "p") strides.page = stride;
    if (letter == "s") strides.slot = stride;
    if (letter == "hk") strides.head = stride;
    if (letter == "2*hk") strides.head = 2 * stride;
  }
  return strides;
}

}  // namespace

Status MakeCacheView(std::string_view layout, std::string_view kv_cache_dtype,
                     const TensorView& key_cache, const Optional& value_cache,
                     const Optional& layer, CacheView& view) {
  const CacheLayout* row = nullptr;
  for (const CacheLayout& candidate : kCacheLayouts)
    if (candidate.name == layout) row = &candidate;
  if (!row)
    return InvalidArgument(Text("layout is ", layout, ", expected one of ", kLayoutChoices));
  const bool own_array = row->value == ValuePlace::kOwnArray;
  if (own_array != value_cache.has_value())
    return InvalidArgument(
        own_array
            ? Text("value_cache is missing, layout ", layout, " keeps V in an array of its own")
            : Text("value_cache is given, but layout ", layout, " keeps K and V in key_cache"));
  const auto axes = std::ranges::count(row->dims, ' ') + 1 + layer.has_value();
  if (key_cache.rank != axes)
    return InvalidArgument(Text("key_cache has rank ", key_cache.rank, ", expected ", axes,
                                " for layout ", layout, layer ? " with layer" : ""));
  view = {.k = key_cache.data};
  INTARSIA_RETURN_IF_ERROR(ElementDType(kv_cache_dtype, key_cache.dtype, view.dtype));
  // Sizes and strides by the letters of the row, so that a new axis order needs no code.
  int axis = 0;
  if (layer) {
    view.num_layers = key_cache.dim(axis++);
    view.layer = layer->as<const int32_t>();
  }
  for (const std::string_view letter : Letters(row->dims)) {
    const int64_t size = key_cache.dim(axis++);
    if (letter == "p") view.num_pages = size;
    if (letter == "s") view.page_size = size;
    if (letter == "hk") view.num_kv_heads = size;
    if (letter == "2*hk") view.num_kv_heads = size / 2;
    if (letter == "d") view.head_dim = view.v_head_dim = size;
  }
  view.k_strides = StridesOf(key_cache, row->dims, layer.has_value());
  if (own_array) {
    view.v_strides = StridesOf(*value_cache, row->dims, layer.has_value());
    view.v = value_cache->data;
  } else {
    view.v_strides = view.k_strides;
    if (view.k) view.v = static_cast<char*>(view.k) + view.k_strides.head / 2 * Bytes(view.dtype);
  }
  return {};
}

}  // namespace intarsia
