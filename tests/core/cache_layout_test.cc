// A CacheView must find the same element as the layout's own shape does.
#include "src/core/cache_layout.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "src/core/dims.h"

namespace intarsia {
namespace {

constexpr int64_t kLayers = 2, kPages = 3, kSlots = 4, kHeads = 5, kDim = 6;

std::vector<int64_t> Shape(const CacheLayout& layout, bool stacked) {
  std::vector<int64_t> shape;
  if (stacked) shape.push_back(kLayers);
  for (std::string_view rest = layout.dims; !rest.empty();) {
    const std::string_view letter = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(rest.size(), letter.size() + 1));
    shape.push_back(letter == "p"    ? kPages
                    : letter == "s"  ? kSlots
                    : letter == "d"  ? kDim
                    : letter == "hk" ? kHeads
                                     : 2 * kHeads);
  }
  return shape;
}

class Layouts : public testing::TestWithParam<std::tuple<size_t, bool>> {
 protected:
  const CacheLayout& layout = kCacheLayouts[std::get<0>(GetParam())];
  bool stacked = std::get<1>(GetParam());
  bool own_array = layout.value == ValuePlace::kOwnArray;

  Status Make(CacheView& view) {
    int64_t size = 1;
    const std::vector<int64_t> shape = Shape(layout, stacked);
    for (const int64_t n : shape) size *= n;
    k_data.resize(static_cast<size_t>(size));
    v_data.resize(static_cast<size_t>(size));
    std::iota(k_data.begin(), k_data.end(), 0.0f);
    std::iota(v_data.begin(), v_data.end(), 1e6f);
    EXPECT_TRUE(MakeDense(k_data.data(), DType::kF32, shape, key_cache).ok());
    if (own_array) {
      EXPECT_TRUE(MakeDense(v_data.data(), DType::kF32, shape, value_cache.emplace()).ok());
    }
    if (stacked) {
      EXPECT_TRUE(MakeDense(&layer_index, DType::kI32, {}, layer.emplace()).ok());
    }
    return MakeCacheView(layout.name, "auto", key_cache, value_cache, layer, view);
  }

  std::vector<float> k_data, v_data;
  int32_t layer_index = 1;
  TensorView key_cache;
  Optional value_cache, layer;
};

INSTANTIATE_TEST_SUITE_P(All, Layouts,
                         testing::Combine(testing::Range<size_t>(0, kCacheLayouts.size()),
                                          testing::Bool()));

TEST_P(Layouts, ViewFindsEveryElement) {
  CacheView view;
  const Status status = Make(view);
  ASSERT_TRUE(status.ok()) << status.message;
  EXPECT_EQ(view.num_pages, kPages);
  EXPECT_EQ(view.page_size, kSlots);
  EXPECT_EQ(view.num_kv_heads, kHeads);
  EXPECT_EQ(view.head_dim, kDim);
  EXPECT_EQ(view.num_layers, stacked ? kLayers : 1);
  EXPECT_EQ(view.layer, stacked ? &layer_index : nullptr);
  // Row-major [layer, page, slot, heads, d]; combined has K in head 2 i and V in head 2 i + 1.
  const auto at = [&](int64_t l, int64_t p, int64_t s, int64_t head, int64_t i) {
    const int64_t heads = own_array ? kHeads : 2 * kHeads;
    return (((l * kPages + p) * kSlots + s) * heads + head) * kDim + i;
  };
  for (int64_t l = 0; l < view.num_layers; ++l)
    for (int64_t p = 0; p < kPages; ++p)
      for (int64_t s = 0; s < kSlots; ++s)
        for (int64_t head = 0; head < kHeads; ++head)
          for (int64_t i = 0; i < kDim; ++i) {
            const int64_t offset = view.k_strides.At(l, p, s, head) + i;
            const float k = static_cast<const float*>(view.k)[offset],
                        v = static_cast<const float*>(view.v)[offset];
            EXPECT_EQ(k, k_data[static_cast<size_t>(at(l, p, s, own_array ? head : 2 * head, i))]);
            EXPECT_EQ(v, own_array ? v_data[static_cast<size_t>(at(l, p, s, head, i))]
                                   : k_data[static_cast<size_t>(at(l, p, s, 2 * head + 1, i))]);
          }
}

TEST_P(Layouts, RefusesTheWrongNumberOfArrays) {
  CacheView view;
  ASSERT_TRUE(Make(view).ok());
  value_cache = own_array ? std::nullopt : Optional(key_cache);
  const Status status = MakeCacheView(layout.name, "auto", key_cache, value_cache, layer, view);
  EXPECT_EQ(status.code, Code::kInvalidArgument);
  EXPECT_TRUE(
      status.message.starts_with(own_array ? "value_cache is missing" : "value_cache is given"))
      << status.message;
}

TEST_P(Layouts, ValuesHaveStridesOfTheirOwn) {
  CacheView view;
  ASSERT_TRUE(Make(view).ok());
  if (!own_array) return;
  const CacheStrides before = view.v_strides;
  for (int64_t& stride : value_cache->strides) stride *= 2;
  ASSERT_TRUE(MakeCacheView(layout.name, "auto", key_cache, value_cache, layer, view).ok());
  EXPECT_EQ(view.k_strides, before);
  EXPECT_EQ(view.v_strides,
            (CacheStrides{2 * before.layer, 2 * before.page, 2 * before.slot, 2 * before.head}));
}

TEST_P(Layouts, NoAddressWhileShapesAreInferred) {
  CacheView view;
  ASSERT_TRUE(Make(view).ok());
  key_cache.data = nullptr;
  if (value_cache) value_cache->data = nullptr;
  ASSERT_TRUE(MakeCacheView(layout.name, "auto", key_cache, value_cache, layer, view).ok());
  EXPECT_EQ(view.k, nullptr);
  EXPECT_EQ(view.v, nullptr);
}

TEST(CacheLayout, UnknownName) {
  CacheView view;
  const Status status = MakeCacheView("ABC", "auto", {}, {}, {}, view);
  EXPECT_EQ(status.message, "layout is ABC, expected one of NHD|combined");
}

TEST(CacheLayout, ChoicesAreTheRows) {
  std::string names;
  for (const CacheLayout& layout : kCacheLayouts)
    names += (names.empty() ? "" : "|") + std::string(layout.name);
  EXPECT_EQ(names, kLayoutChoices);
}

TEST(CacheLayout, ExpandsInSpecs) {
  EXPECT_EQ(ExpandCacheDims("@key_cache"),
            "layout=NHD: layer?l p s hk d | layout=combined: layer?l p s 2*hk d");
  EXPECT_EQ(ExpandCacheDims("x: @key_cache"),
            "x: layout=NHD: layer?l p s hk d | x: layout=combined: layer?l p s 2*hk d");
  EXPECT_EQ(ExpandCacheDims("x: @value_cache"), "x: layout=NHD: layer?l p s hk d");
  EXPECT_EQ(ExpandCacheDims("t hk d"), "t hk d");
}

}  // namespace
}  // namespace intarsia
