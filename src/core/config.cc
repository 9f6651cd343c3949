#include "src/core/config.h"

#include <cstdlib>

namespace intarsia {

namespace {

std::string_view Get(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

const Config& GetConfig() {
  static const Config config{.check_indices = Get("INTARSIA_CHECK") == "1",
                             .isa = Get("INTARSIA_ISA")};
  return config;
}

std::string PjrtPlugin() { return std::string(Get("INTARSIA_PJRT_PLUGIN")); }

}  // namespace intarsia
