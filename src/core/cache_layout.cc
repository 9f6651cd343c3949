#include "src/core/cache_layout.h"

#include <algorithm>

namespace intarsia {

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

Status MakeCacheView(std::string_view layout, const TensorView& key_cache,
                     const Optional& value_cache, const Optional& layer, CacheView& view) {
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
  view = {.dtype = key_cache.dtype, .k = key_cache.data};
  // Sizes and strides by the letters of the row, so that a new axis order needs no code.
  int axis = 0;
  if (layer) {
    view.num_layers = key_cache.dim(axis);
    view.layer_stride = key_cache.stride(axis++);
    view.layer = layer->as<const int32_t>();
  }
  for (std::string_view rest = row->dims; !rest.empty(); ++axis) {
    const std::string_view letter = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(rest.size(), letter.size() + 1));
    const int64_t size = key_cache.dim(axis), stride = key_cache.stride(axis);
    if (letter == "p") view.num_pages = size, view.page_stride = stride;
    if (letter == "s") view.page_size = size, view.slot_stride = stride;
    if (letter == "hk") view.num_kv_heads = size, view.head_stride = stride;
    if (letter == "2*hk") view.num_kv_heads = size / 2, view.head_stride = 2 * stride;
    if (letter == "d") view.head_dim = size;
  }
  if (own_array) {
    for (int i = 0; i < key_cache.rank; ++i)
      if (key_cache.dim(i) > 1 && value_cache->stride(i) != key_cache.stride(i))
        return InvalidArgument(Text("value_cache has stride ", value_cache->stride(i), " on axis ",
                                    i, " but key_cache has ", key_cache.stride(i)));
    view.v = value_cache->data;
  } else if (view.k) {
    view.v = static_cast<char*>(view.k) + view.head_stride / 2 * Bytes(view.dtype);
  }
  return {};
}

}  // namespace intarsia
