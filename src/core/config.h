// The environment variables that the library reads, all of them, once.
#pragma once
#include <string_view>

namespace intarsia {

struct Config {
  bool check_indices = false;  // INTARSIA_CHECK=1: an index out of range is an error, not skipped
  std::string_view isa;        // INTARSIA_ISA=avx2: no better instruction set than this one
};

const Config& GetConfig();

}  // namespace intarsia
