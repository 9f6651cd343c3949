#include "src/core/config.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <vector>

namespace intarsia {

namespace {

std::string_view Get(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// The same of a variable that may hold one of these words, or nothing; `status` fails otherwise.
std::string_view GetOneOf(const std::vector<std::string_view>& words, const char* name,
                          Status& status) {
  const std::string_view value = Get(name);
  if (value.empty() || std::ranges::find(words, value) != words.end()) return value;
  std::string expected;
  for (const std::string_view word : words) expected += Text(word, " or ");
  status = InvalidArgument(
      Text("environment variable ", name, " is \"", value, "\", expected ", expected, "nothing"));
  return "";
}

}  // namespace

const Config& GetConfig() {
  static const Config config = [] {
    Config read;
    read.check_indices = GetOneOf({"0", "1"}, "INTARSIA_CHECK", read.status) == "1";
    read.log_calls = GetOneOf({"0", "1"}, "INTARSIA_LOG", read.status) == "1";
    read.isa = GetOneOf({"avx2", "avx512"}, "INTARSIA_ISA", read.status);
    const std::string_view arch = GetOneOf({"80", "86", "89", "90"}, "INTARSIA_ARCH", read.status);
    std::from_chars(arch.data(), arch.data() + arch.size(), read.arch);
    return read;
  }();
  return config;
}

std::string PjrtPlugin() { return std::string(Get("INTARSIA_PJRT_PLUGIN")); }

}  // namespace intarsia
