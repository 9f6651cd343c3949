// Whether to walk the long grids too, as `make test-full` does.
#pragma once
#include <cstdlib>

namespace intarsia {

inline bool Full() {
  const char* full = std::getenv("INTARSIA_TEST_FULL");
  return full && *full == '1';
}

}  // namespace intarsia
