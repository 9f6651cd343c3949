// The environment variables that the library reads, all of them, once.
#pragma once
#include <string>
#include <string_view>

#include "src/core/status.h"

namespace intarsia {

struct Config {
  bool check_indices = false;  // INTARSIA_CHECK=1: an index out of range is an error, not skipped
  bool log_calls = false;      // INTARSIA_LOG=1: each call is a line on stderr before it runs
  std::string_view isa;        // INTARSIA_ISA=avx2: no better instruction set than this one
  int arch = 0;   // INTARSIA_ARCH=80: no newer kernels than compute capability 8.0's; 0: the GPU's
  Status status;  // of reading them: each call fails where a value has no meaning
};

const Config& GetConfig();

// INTARSIA_PJRT_PLUGIN, as it is now: a front end sets it after the library was loaded, before it
// hands the library to a framework as a PJRT plugin.
std::string PjrtPlugin();

}  // namespace intarsia
