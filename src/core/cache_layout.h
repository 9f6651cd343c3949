// The layouts of a paged KV cache. A layout is an order of axes, spelled in the letters of the
// specs with blanks between them, slowest first:
//   l    layers, of a cache that the operand `layer` indexes; in front if the order has no l
//   p    pages (vLLM: blocks)
//   s    slots of a page
//   hk   KV heads
//   d    elements of a head, always last
// Where V lies follows from the order, too: in an array of its own with the same axes, unless
//   2*hk stands for hk: K in the even, V in the odd heads of one array
//   2*d  stands for d:  each head's V behind its K
//   2    is an axis:    K, then V
// The common ones have names, a row of the table each. Kernels never see a layout, they see
// strides.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "src/core/index_vector.h"
#include "src/core/status.h"
#include "src/core/tensor_view.h"

namespace intarsia {

struct CacheLayout {
  std::string_view name, axes;

  // Whether V lies in value_cache, and not with K in key_cache.
  constexpr bool own_value_array() const { return axes.find('2') == axes.npos; }
};

inline constexpr std::array<CacheLayout, 5> kCacheLayouts{{
    {"NHD", "p s hk d"},
    {"HND", "p hk s d"},
    {"combined", "p s 2*hk d"},  // torch_xla's and the TPU kernel's
    {"packed", "p s hk 2*d"},    // vLLM's newer FlashAttention cache
    {"stacked", "2 p s hk d"},   // vLLM's older one
}};

namespace internal {
inline constexpr auto kJoinedLayouts = [] {
  std::array<char, 64> text{};  // ends in 0
  size_t length = 0;
  for (const CacheLayout& layout : kCacheLayouts) {
    if (length > 0) text[length++] = '|';
    for (const char c : layout.name) text[length++] = c;
  }
  return text;
}();
}  // namespace internal
inline constexpr std::string_view kLayoutChoices = internal::kJoinedLayouts.data();

// Finds what `layout` names, or spells. The message completes "<op>: ".
Status FindLayout(std::string_view layout, CacheLayout& found);

// The dims of "@key_cache" or "@value_cache" in a layout; empty for a value_cache that it has not.
std::string CacheDims(std::string_view operand, const CacheLayout& layout);

// One variant of a spec's dims; before one that ends in "@key_cache" or "@value_cache", which stays
// for the orders of axes that calls may spell, a variant for each row of the table.
std::string ExpandCacheDims(std::string_view dims);

// What `kv_cache_dtype` may say: how the elements of a cache are stored. "auto" is what its array
// says; "fp8" is fp8_e4m3.
inline constexpr std::string_view kKvCacheDTypes = "auto|fp8|fp8_e4m3|fp8_e5m2";

// In elements.
struct CacheStrides {
  int64_t layer = 0, page = 0, slot = 0, head = 0;
  bool operator==(const CacheStrides&) const = default;

  [[gnu::always_inline]] INTARSIA_HOST_DEVICE int64_t At(int64_t at_layer, int64_t at_page,
                                                         int64_t at_slot, int64_t at_head) const {
    return at_layer * layer + at_page * page + at_slot * slot + at_head * head;
  }
};

// A paged cache as kernels see it: K of (layer, page, slot, head) starts at k + k_strides.At(...),
// V likewise; the last stride is 1.
struct CacheView {
  DType dtype = DType::kOther;  // of the elements; uint8 arrays hold one of the fp8 types
  void* k = nullptr;
  void* v = nullptr;
  int64_t num_pages = 0, page_size = 0, num_kv_heads = 0, num_layers = 1;
  int64_t head_dim = 0, v_head_dim = 0;
  CacheStrides k_strides = {}, v_strides = {};
  // A device-side layer index, or null: layer 0. Out of range it selects nothing.
  const int32_t* layer = nullptr;
};

// The message completes "<op>: ".
Status MakeCacheView(std::string_view layout, std::string_view kv_cache_dtype,
                     const TensorView& key_cache, const Optional& value_cache,
                     const Optional& layer, CacheView& view);

}  // namespace intarsia
