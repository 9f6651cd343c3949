#include "src/core/config.h"

#include <cstdlib>

namespace intarsia {

const Config& GetConfig() {
  static const Config config = [] {
    const auto get = [](const char* name) {
      const char* value = std::getenv(name);
      return std::string_view(value ? value : "");
    };
    return Config{.check_indices = get("INTARSIA_CHECK") == "1", .isa = get("INTARSIA_ISA")};
  }();
  return config;
}

}  // namespace intarsia
