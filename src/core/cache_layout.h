// The layouts of a paged KV cache. A layout is one row of a table: the order of its axes and where
// V starts. Kernels never see a layout, they see strides.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "src/core/index_vector.h"
#include "src/core/status.h"
#include "src/core/tensor_view.h"

namespace intarsia {

// Where V lies, seen from K.
enum class ValuePlace {
  kOwnArray,  // in value_cache
  kOddHeads,  // K in even, V in odd heads of one array
};

struct CacheLayout {
  std::string_view name;
  std::string_view dims;  // of key_cache, in the letters p, s, hk, d
  ValuePlace value;
};

inline constexpr std::array<CacheLayout, 2> kCacheLayouts{{
    {"NHD", "p s hk d", ValuePlace::kOwnArray},
    {"combined", "p s 2*hk d", ValuePlace::kOddHeads},  // torch_xla's and the TPU kernel's
}};
inline constexpr std::string_view kLayoutChoices = "NHD|combined";

// One variant of a spec's dims; if it ends in "@key_cache" or "@value_cache", a variant instead for
// each row of the table, each with a leading layer axis when the operand `layer` is given.
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
