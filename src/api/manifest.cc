#include "src/api/manifest.h"

#include <charconv>
#include <cmath>

#include "src/core/cache_layout.h"
#include "src/core/cpu/isa.h"
#include "src/core/json.h"
#include "src/ops/registry.h"

namespace intarsia {
namespace {

using json::List;
using json::Object;
using json::Quoted;

std::string ToJson(const AttrValue& value) {
  if (const auto* b = std::get_if<bool>(&value)) return *b ? "true" : "false";
  if (const auto* i = std::get_if<int64_t>(&value)) return std::to_string(*i);
  if (const auto* s = std::get_if<std::string_view>(&value)) return Quoted(*s);
  if (const auto* d = std::get_if<double>(&value)) {
    if (!std::isfinite(*d)) return "null";
    char digits[32];  // the shortest that give the same f32 back, in no locale's way
    return {digits, std::to_chars(digits, digits + sizeof digits, static_cast<float>(*d)).ptr};
  }
  return "null";
}

std::string OperandJson(const OperandInfo& operand) {
  constexpr std::string_view kAccess[] = {"dense", "rows", "even_rows", "even_leading"};
  return Object()
      .String("name", operand.name)
      .String("dims", operand.dims.text())
      .String("dtype", operand.dtype)
      .Bool("optional", operand.optional)
      .String("access", kAccess[static_cast<int>(operand.access)])
      .String("indexes", operand.indexes.text())
      .Bool("negative_skips", operand.negative_skips)
      .String("doc", operand.doc)
      .Done();
}

std::string AttributeJson(const AttributeInfo& attribute) {
  constexpr std::string_view kTypes[] = {"", "bool", "i64", "f32", "string"};
  return Object()
      .String("name", attribute.name)
      .String("type", kTypes[static_cast<int>(attribute.type)])
      .Json("default", ToJson(attribute.default_value))
      .String("one_of", attribute.one_of)
      .Bool("or_cache_axes", attribute.or_cache_axes)
      .String("doc", attribute.doc)
      .Done();
}

std::string ResultJson(const ResultInfo& result) {
  return Object()
      .String("name", result.name)
      .String("dims", result.dims.text())
      .String("dtype", result.dtype)
      .String("alias", result.alias)
      .String("mutates", result.mutates)
      .String("when", result.when)
      .Bool("workspace", result.workspace)
      .String("doc", result.doc)
      .Done();
}

std::string OpJson(const OpInfo& op) {
  std::vector<std::string_view> platforms;
  for (const PlatformRow& row : kPlatforms)
    if (op.platforms.Has(row.platform)) platforms.push_back(row.name);
  return Object()
      .String("name", op.name)
      .String("target", Text(INTARSIA_TARGET_PREFIX, ".", op.name))
      .String("target_alias", op.target_alias)
      .String("summary", op.summary)
      .String("source", op.source)
      .String("separable", op.separable)
      .Json("platforms", List(platforms, Quoted))
      .Json("operands", List(op.operands, OperandJson))
      .Json("attributes", List(op.attributes, AttributeJson))
      .Json("results", List(op.results, ResultJson))
      .Done();
}

}  // namespace

std::string Manifest() {
  const auto layout_json = [](const CacheLayout& layout) {
    return Object()
        .String("name", layout.name)
        .String("axes", layout.axes)
        .Bool("value_cache", layout.own_value_array())
        .Done();
  };
#ifdef INTARSIA_WITH_CUDA
  const std::string cuda = Quoted(INTARSIA_CUDA_VERSION);
#else
  const std::string cuda = "null";
#endif
  return Object()
      .String("version", INTARSIA_VERSION)
      .Json("cuda", cuda)
      .String("isa", Name(BestIsa()))
      .Json("layouts", List(kCacheLayouts, layout_json))
      .Json("ops", List(Ops(), OpJson))
      .Done();
}

}  // namespace intarsia
