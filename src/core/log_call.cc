#include "src/core/log_call.h"

#include <cstdio>

namespace intarsia {
namespace {

std::string ToText(const TensorView& tensor) {
  std::string text = Text(Name(tensor.dtype), ShapeText(tensor.shape()));
  if (!tensor.dense())
    text += Text(" strides ", ShapeText({tensor.strides.data(), tensor.shape().size()}));
  return text;
}

std::string ToText(const AttrValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* number = std::get_if<int64_t>(&value)) return std::to_string(*number);
  if (const auto* text = std::get_if<std::string_view>(&value)) return std::string(*text);
  char text[32];
  std::snprintf(text, sizeof(text), "%g", std::get<double>(value));
  return text;
}

}  // namespace

void LogCall(const OpInfo& op, const Call& call, Platform platform) {
  std::string line = Text("intarsia: ", op.name, " on ", Name(platform));
  auto add = [&, before = ": "](std::string_view name, const std::string& value) mutable {
    line += Text(before, name, " ", value);
    before = ", ";
  };
  for (size_t i = 0; i < op.operands.size(); ++i)
    if (call.operands[i]) add(op.operands[i].name, ToText(*call.operands[i]));
  for (size_t i = 0; i < op.attributes.size(); ++i)
    if (call.attributes[i].index() > 0) add(op.attributes[i].name, ToText(call.attributes[i]));
  for (size_t i = 0; i < op.results.size(); ++i)
    if (call.results[i]) add(Text("-> ", op.results[i].name), ToText(*call.results[i]));
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);  // whole lines, whichever thread calls
}

}  // namespace intarsia
