// JSON as the C interface hands it out: written, never read.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "src/core/status.h"

namespace intarsia::json {

inline std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    constexpr char kDigits[] = "0123456789abcdef";
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20)
      out += Text("\\u00", std::string{kDigits[c / 16], kDigits[c % 16]});
    else
      out += c;
  }
  return out + "\"";
}

// {"key": value, ...}, one field after the other.
class Object {
 public:
  Object& Json(std::string_view key, std::string_view json) {
    text_ += Text(text_.empty() ? "" : ", ", Quoted(key), ": ", json);
    return *this;
  }
  Object& String(std::string_view key, std::string_view text) { return Json(key, Quoted(text)); }
  Object& Number(std::string_view key, int64_t value) { return Json(key, std::to_string(value)); }
  Object& Bool(std::string_view key, bool value) { return Json(key, value ? "true" : "false"); }
  std::string Done() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

template <class Rows, class Fn>
std::string List(const Rows& rows, Fn row_json) {
  std::string text;
  for (const auto& row : rows) text += (text.empty() ? "" : ", ") + row_json(row);
  return "[" + text + "]";
}

}  // namespace intarsia::json
