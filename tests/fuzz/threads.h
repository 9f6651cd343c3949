#pragma once
#include <cstdlib>

namespace intarsia::fuzz {

// Of each door. One is fastest, and two tokens that write one slot of a cache then have an order.
inline unsigned Threads() {
  static const unsigned threads = [] {
    const char* text = std::getenv("FUZZ_THREADS");
    return text ? static_cast<unsigned>(std::atoi(text)) : 1u;
  }();
  return threads;
}

}  // namespace intarsia::fuzz
