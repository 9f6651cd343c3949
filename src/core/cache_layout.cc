#include "src/core/cache_layout.h"

#include <algorithm>

namespace intarsia {
namespace {

constexpr std::string_view kValueCache = "@value_cache";

// Takes the first word off `axes`.
std::string_view NextAxis(std::string_view& axes) {
  const std::string_view axis = axes.substr(0, axes.find(' '));
  axes.remove_prefix(std::min(axes.size(), axis.size() + 1));
  return axis;
}

bool SpellsLayers(std::string_view axes) {
  while (!axes.empty())
    if (NextAxis(axes) == "l") return true;
  return false;
}

// What is wrong with an order of axes; empty: nothing.
std::string Fault(std::string_view axes) {
  constexpr std::array<std::string_view, 8> kWords{"p", "s", "hk", "d", "l", "2*hk", "2*d", "2"};
  if (!axes.ends_with(" d") && !axes.ends_with(" 2*d")) return "it must end in d or 2*d";
  std::array<int, kWords.size()> count{};
  while (!axes.empty()) {
    const std::string_view axis = NextAxis(axes);
    const auto* word = std::ranges::find(kWords, axis);
    if (word == kWords.end()) return Text("\"", axis, "\" is no axis");
    ++count[static_cast<size_t>(word - kWords.begin())];
  }
  const auto [p, s, hk, d, l, two_hk, two_d, two] = count;
  if (p != 1 || s != 1 || hk + two_hk != 1 || d + two_d != 1 || l > 1)
    return "it must have p, s, hk and d once each, and l at most once";
  if (two_hk + two_d + two > 1) return "it may double one axis, or have an axis 2";
  return "";
}

}  // namespace

Status FindLayout(std::string_view layout, CacheLayout& found) {
  for (const CacheLayout& row : kCacheLayouts) {
    if (row.name != layout) continue;
    found = row;
    return {};
  }
  found = {.name = layout, .axes = layout};
  const std::string fault = Fault(layout);
  if (fault.empty()) return {};
  return InvalidArgument(Text("layout is \"", layout, "\", expected one of ", kLayoutChoices,
                              " or an order of axes such as \"p hk s d\": ", fault));
}

std::string CacheDims(std::string_view operand, const CacheLayout& layout) {
  if (operand == kValueCache && !layout.own_value_array()) return "";
  return Text(SpellsLayers(layout.axes) ? "" : "layer?l ", layout.axes);
}

std::string ExpandCacheDims(std::string_view dims) {
  const size_t at = dims.find('@');
  if (at == dims.npos) return std::string(dims);
  const std::string_view prefix = dims.substr(0, at);
  std::string text;
  for (const CacheLayout& layout : kCacheLayouts)
    if (const std::string variant = CacheDims(dims.substr(at), layout); !variant.empty())
      text += Text(prefix, "layout=", layout.name, ": ", variant, " | ");
  return text + std::string(dims);
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

// Reads sizes and strides of an array by the letters of its axes, so that a new order needs no
// code. Returns how far behind K its V lies, in elements; 0 if it has none.
int64_t ReadAxes(const TensorView& array, std::string_view axes, bool has_layers, CacheView& sizes,
                 CacheStrides& strides) {
  int axis = 0;
  if (has_layers && !SpellsLayers(axes)) {
    sizes.num_layers = array.dim(axis);
    strides.layer = array.stride(axis++);
  }
  int64_t to_value = 0;
  while (!axes.empty()) {
    const std::string_view letter = NextAxis(axes);
    const int64_t size = array.dim(axis), stride = array.stride(axis);
    ++axis;
    if (letter == "l") {
      sizes.num_layers = size;
      strides.layer = stride;
    } else if (letter == "p") {
      sizes.num_pages = size;
      strides.page = stride;
    } else if (letter == "s") {
      sizes.page_size = size;
      strides.slot = stride;
    } else if (letter == "hk") {
      sizes.num_kv_heads = size;
      strides.head = stride;
    } else if (letter == "2*hk") {
      sizes.num_kv_heads = size / 2;
      strides.head = 2 * stride;
      to_value = stride;
    } else if (letter == "d") {
      sizes.head_dim = size;
    } else if (letter == "2*d") {
      sizes.head_dim = size / 2;
      to_value = size / 2 * stride;
    } else {
      to_value = stride;  // "2"
    }
  }
  return to_value;
}

}  // namespace

Status MakeCacheView(std::string_view layout, std::string_view kv_cache_dtype,
                     const TensorView& key_cache, const Optional& value_cache,
                     const Optional& layer, CacheView& view) {
  CacheLayout row;
  INTARSIA_RETURN_IF_ERROR(FindLayout(layout, row));
  const bool own_array = row.own_value_array(), spells_layers = SpellsLayers(row.axes);
  if (own_array != value_cache.has_value())
    return InvalidArgument(
        own_array
            ? Text("value_cache is missing, layout ", layout, " keeps V in an array of its own")
            : Text("value_cache is given, but layout ", layout, " keeps K and V in key_cache"));
  if (spells_layers && !layer)
    return InvalidArgument(Text("layer is missing, layout ", layout, " has the axis l"));
  const auto axes =
      std::ranges::count(row.axes, ' ') + 1 + (layer.has_value() && !spells_layers ? 1 : 0);
  for (const TensorView* array : {&key_cache, value_cache ? &*value_cache : nullptr})
    if (array && array->rank != axes)
      return InvalidArgument(Text(array == &key_cache ? "key_cache" : "value_cache", " has rank ",
                                  array->rank, ", expected ", axes, " for layout ", layout,
                                  layer ? " with layer" : ""));
  view = {.k = key_cache.data, .layer = layer ? layer->as<const int32_t>() : nullptr};
  INTARSIA_RETURN_IF_ERROR(ElementDType(kv_cache_dtype, key_cache.dtype, view.dtype));
  if (own_array) {
    ReadAxes(*value_cache, row.axes, layer.has_value(), view, view.v_strides);
    view.v = value_cache->data;
  }
  const int64_t to_value = ReadAxes(key_cache, row.axes, layer.has_value(), view, view.k_strides);
  if (!own_array) {
    view.v_strides = view.k_strides;
    if (view.k) view.v = static_cast<char*>(view.k) + to_value * Bytes(view.dtype);
  }
  view.v_head_dim = view.head_dim;
  return {};
}

}  // namespace intarsia
