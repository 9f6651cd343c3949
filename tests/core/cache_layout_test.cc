// A CacheView must find the same element as the layout's own order of axes does.
#include "src/core/cache_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <sstream>
#include <vector>

namespace intarsia {
namespace {

constexpr int64_t kLayers = 2, kPages = 3, kSlots = 4, kHeads = 5, kDim = 6;
const std::map<std::string, int64_t> kSizes = {
    {"l", kLayers},       {"p", kPages}, {"s", kSlots},     {"hk", kHeads},
    {"2*hk", 2 * kHeads}, {"d", kDim},   {"2*d", 2 * kDim}, {"2", 2}};

struct Case {
  std::string layout;
  bool with_layer;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.layout << (c.with_layer ? " of a layer" : "");
}

// Every row of the table and orders without a name, FlashInfer's two and vLLM's among them.
std::vector<Case> Cases() {
  std::vector<std::string> layouts = {"hk p s d",   "s p hk d",   "hk s p 2*d", "p 2 s hk d",
                                      "p 2 hk s d", "2*hk p s d", "p s 2 hk d"};
  for (const CacheLayout& row : kCacheLayouts) layouts.emplace_back(row.name);
  std::vector<Case> cases = {
      {"l p hk s d", true}, {"p l s hk d", true}, {"p hk l s 2*d", true}, {"2 l p s hk d", true}};
  for (const std::string& layout : layouts)
    for (const bool with_layer : {false, true}) cases.push_back({layout, with_layer});
  return cases;
}

std::vector<std::string> Words(std::string_view text) {
  std::istringstream stream{std::string(text)};
  return {std::istream_iterator<std::string>(stream), {}};
}

class Layouts : public testing::TestWithParam<Case> {
 protected:
  std::string layout = GetParam().layout;
  bool with_layer = GetParam().with_layer;
  std::vector<std::string> axes;
  bool own_array = false;

  void SetUp() override {
    CacheLayout found;
    ASSERT_TRUE(FindLayout(layout, found).ok());
    axes = Words(found.axes);
    own_array = found.own_value_array();
    if (with_layer && std::find(axes.begin(), axes.end(), "l") == axes.end())
      axes.insert(axes.begin(), "l");
    std::vector<int64_t> shape;
    for (const std::string& axis : axes) shape.push_back(kSizes.at(axis));
    const int64_t size = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies());
    k_data.resize(static_cast<size_t>(size));
    v_data.resize(static_cast<size_t>(size));
    std::iota(k_data.begin(), k_data.end(), 0.0f);
    std::iota(v_data.begin(), v_data.end(), 1e6f);
    ASSERT_TRUE(MakeDense(k_data.data(), DType::kF32, shape, key_cache).ok());
    if (own_array) {
      ASSERT_TRUE(MakeDense(v_data.data(), DType::kF32, shape, value_cache.emplace()).ok());
    }
    if (with_layer) {
      ASSERT_TRUE(MakeDense(&layer_index, DType::kI32, {}, layer.emplace()).ok());
    }
    const Status status = MakeCacheView(layout, "auto", key_cache, value_cache, layer, view);
    ASSERT_TRUE(status.ok()) << status.message;
  }

  // What lies at the place that the order of axes says; `value`: of V in an array that holds both.
  float At(const std::vector<float>& data, std::map<std::string, int64_t> place, bool value) const {
    place["2*hk"] = 2 * place["hk"] + value;
    place["2*d"] = kDim * value + place["d"];
    place["2"] = value;
    int64_t offset = 0;
    for (const std::string& axis : axes) offset = offset * kSizes.at(axis) + place[axis];
    return data[static_cast<size_t>(offset)];
  }

  std::vector<float> k_data, v_data;
  int32_t layer_index = 1;
  TensorView key_cache;
  Optional value_cache, layer;
  CacheView view;
};

INSTANTIATE_TEST_SUITE_P(All, Layouts, testing::ValuesIn(Cases()));

TEST_P(Layouts, ViewFindsEveryElement) {
  EXPECT_EQ(view.num_pages, kPages);
  EXPECT_EQ(view.page_size, kSlots);
  EXPECT_EQ(view.num_kv_heads, kHeads);
  EXPECT_EQ(view.head_dim, kDim);
  EXPECT_EQ(view.v_head_dim, kDim);
  EXPECT_EQ(view.num_layers, with_layer ? kLayers : 1);
  EXPECT_EQ(view.layer, with_layer ? &layer_index : nullptr);
  for (int64_t l = 0; l < view.num_layers; ++l)
    for (int64_t p = 0; p < kPages; ++p)
      for (int64_t s = 0; s < kSlots; ++s)
        for (int64_t head = 0; head < kHeads; ++head)
          for (int64_t i = 0; i < kDim; ++i) {
            const float k = static_cast<const float*>(view.k)[view.k_strides.At(l, p, s, head) + i];
            const float v = static_cast<const float*>(view.v)[view.v_strides.At(l, p, s, head) + i];
            const std::map<std::string, int64_t> place = {
                {"l", l}, {"p", p}, {"s", s}, {"hk", head}, {"d", i}};
            ASSERT_EQ(k, At(k_data, place, false));
            ASSERT_EQ(v, own_array ? At(v_data, place, false) : At(k_data, place, true));
          }
}

TEST_P(Layouts, RefusesTheWrongNumberOfArrays) {
  value_cache = own_array ? std::nullopt : Optional(key_cache);
  const Status status = MakeCacheView(layout, "auto", key_cache, value_cache, layer, view);
  EXPECT_EQ(status.code, Code::kInvalidArgument);
  EXPECT_TRUE(
      status.message.starts_with(own_array ? "value_cache is missing" : "value_cache is given"))
      << status.message;
}

TEST_P(Layouts, RefusesAnotherRank) {
  ++key_cache.rank;
  Status status = MakeCacheView(layout, "auto", key_cache, value_cache, layer, view);
  EXPECT_TRUE(status.message.starts_with("key_cache has rank ")) << status.message;
  if (!own_array) return;
  --key_cache.rank;
  --value_cache->rank;
  status = MakeCacheView(layout, "auto", key_cache, value_cache, layer, view);
  EXPECT_TRUE(status.message.starts_with("value_cache has rank ")) << status.message;
}

TEST_P(Layouts, ValuesHaveStridesOfTheirOwn) {
  if (!own_array) return;
  const CacheStrides before = view.v_strides;
  for (int64_t& stride : value_cache->strides) stride *= 2;
  ASSERT_TRUE(MakeCacheView(layout, "auto", key_cache, value_cache, layer, view).ok());
  EXPECT_EQ(view.k_strides, before);
  EXPECT_EQ(view.v_strides,
            (CacheStrides{2 * before.layer, 2 * before.page, 2 * before.slot, 2 * before.head}));
}

TEST_P(Layouts, NoAddressWhileShapesAreInferred) {
  key_cache.data = nullptr;
  if (value_cache) value_cache->data = nullptr;
  ASSERT_TRUE(MakeCacheView(layout, "auto", key_cache, value_cache, layer, view).ok());
  EXPECT_EQ(view.k, nullptr);
  EXPECT_EQ(view.v, nullptr);
}

TEST(CacheLayout, WhatIsNoLayout) {
  const std::string expected =
      Text("\", expected one of ", kLayoutChoices, " or an order of axes such as \"p hk s d\": ");
  for (const auto& [layout, fault] : std::map<std::string, std::string>{
           {"ABC", "it must end in d or 2*d"},
           {"", "it must end in d or 2*d"},
           {"nhd", "it must end in d or 2*d"},
           {"p s d hk", "it must end in d or 2*d"},
           {"p s hk d ", "it must end in d or 2*d"},
           {" p s hk d", "\"\" is no axis"},
           {"p  s hk d", "\"\" is no axis"},
           {"p s h d", "\"h\" is no axis"},
           {"p 2*s hk d", "\"2*s\" is no axis"},
           {"p s d", "it must have p, s, hk and d once each, and l at most once"},
           {"p s hk hk d", "it must have p, s, hk and d once each, and l at most once"},
           {"p s hk 2*hk d", "it must have p, s, hk and d once each, and l at most once"},
           {"p s hk d d", "it must have p, s, hk and d once each, and l at most once"},
           {"l l p s hk d", "it must have p, s, hk and d once each, and l at most once"},
           {"2 p s 2*hk d", "it may double one axis, or have an axis 2"},
           {"p s 2*hk 2*d", "it may double one axis, or have an axis 2"},
           {"2 2 p s hk d", "it may double one axis, or have an axis 2"}}) {
    CacheLayout found;
    const Status status = FindLayout(layout, found);
    EXPECT_EQ(status.code, Code::kInvalidArgument);
    EXPECT_EQ(status.message, Text("layout is \"", layout, expected, fault));
    CacheView view;
    EXPECT_EQ(MakeCacheView(layout, "auto", {}, {}, {}, view).message, status.message);
  }
}

TEST(CacheLayout, AnOrderWithLayersNeedsTheLayer) {
  CacheView view;
  EXPECT_EQ(MakeCacheView("l p s hk d", "auto", {}, TensorView(), {}, view).message,
            "layer is missing, layout l p s hk d has the axis l");
}

TEST(CacheLayout, ANameIsWorthItsOrder) {
  for (const CacheLayout& row : kCacheLayouts) {
    CacheLayout named, spelled;
    ASSERT_TRUE(FindLayout(row.name, named).ok());
    ASSERT_TRUE(FindLayout(row.axes, spelled).ok());
    EXPECT_EQ(named.axes, spelled.axes);
    EXPECT_EQ(named.own_value_array(), spelled.own_value_array());
  }
}

TEST(CacheLayout, KvCacheDType) {
  float data[24] = {};
  TensorView cache;
  CacheView view;
  const auto make = [&](DType dtype, std::string_view kv_cache_dtype) {
    EXPECT_TRUE(MakeDense(data, dtype, std::vector<int64_t>{1, 2, 3, 4}, cache).ok());
    return MakeCacheView("NHD", kv_cache_dtype, cache, cache, {}, view).message;
  };
  EXPECT_EQ(make(DType::kF8E5M2, "auto"), "");
  EXPECT_EQ(view.dtype, DType::kF8E5M2);
  for (const std::string_view name : {"fp8", "fp8_e4m3"}) {
    EXPECT_EQ(make(DType::kU8, name), "");
    EXPECT_EQ(view.dtype, DType::kF8E4M3);
    EXPECT_EQ(make(DType::kF8E4M3, name), "");
    EXPECT_EQ(
        make(DType::kF8E5M2, name),
        Text("key_cache has dtype f8e5m2, expected f8e4m3fn or u8 for kv_cache_dtype ", name));
  }
  EXPECT_EQ(make(DType::kU8, "fp8_e5m2"), "");
  EXPECT_EQ(view.dtype, DType::kF8E5M2);
  EXPECT_EQ(make(DType::kBF16, "fp8"),
            "key_cache has dtype bf16, expected f8e4m3fn or u8 for kv_cache_dtype fp8");
  EXPECT_EQ(make(DType::kU8, "auto"),
            "kv_cache_dtype is auto but key_cache has dtype u8, expected fp8_e4m3 or fp8_e5m2");
}

TEST(CacheLayout, ChoicesAreTheRows) {
  std::string names;
  for (const CacheLayout& layout : kCacheLayouts)
    names += (names.empty() ? "" : "|") + std::string(layout.name);
  EXPECT_EQ(names, kLayoutChoices);
}

TEST(CacheLayout, ExpandsInSpecs) {
  EXPECT_EQ(ExpandCacheDims("x: @key_cache"),
            "x: layout=NHD: layer?l p s hk d | x: layout=HND: layer?l p hk s d | "
            "x: layout=combined: layer?l p s 2*hk d | x: layout=packed: layer?l p s hk 2*d | "
            "x: layout=stacked: layer?l 2 p s hk d | x: @key_cache");
  EXPECT_EQ(ExpandCacheDims("@value_cache"),
            "layout=NHD: layer?l p s hk d | layout=HND: layer?l p hk s d | @value_cache");
  EXPECT_EQ(ExpandCacheDims("t hk d"), "t hk d");
}

TEST(CacheLayout, DimsOfAnOrder) {
  EXPECT_EQ(CacheDims("@key_cache", {.name = {}, .axes = "p hk s d"}), "layer?l p hk s d");
  EXPECT_EQ(CacheDims("@value_cache", {.name = {}, .axes = "p l s hk d"}), "p l s hk d");
  EXPECT_EQ(CacheDims("@value_cache", {.name = {}, .axes = "p 2 s hk d"}), "");
}

}  // namespace
}  // namespace intarsia
