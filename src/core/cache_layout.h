// The layouts of a paged KV cache. A layout is one row of a table: the order of its axes and where
// V starts. Kernels never see a layout, they see strides.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

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

// A paged cache of one layer as kernels see it; strides in elements. K of (page, slot, head) starts
// at k + page * page_stride + slot * slot_stride + head * head_stride, V likewise.
struct CacheView {
  DType dtype = DType::kOther;
  void* k = nullptr;
  void* v = nullptr;
  int64_t num_pages = 0, page_size = 0, num_kv_heads = 0, head_dim = 0, num_layers = 1;
  int64_t page_stride = 0, slot_stride = 0, head_stride = 0, layer_stride = 0;
  // A device-side layer index, or null: layer 0. Out of range it selects nothing.
  const int32_t* layer = nullptr;
};

// The message completes "<op>: ".
Status MakeCacheView(std::string_view layout, const TensorView& key_cache,
                     const Optional& value_cache, const Optional& layer, CacheView& view);

}  // namespace intarsia
