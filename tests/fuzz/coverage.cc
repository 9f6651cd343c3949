// What GCC's -fsanitize-coverage=trace-pc calls, told to libFuzzer: clang has counters in its
// objects, and no clang of Debian's before 17 compiles the project (P1816). So GCC compiles, and
// libFuzzer sees these counters as "extra" ones (compiler-rt, FuzzerExtraCounters.cpp).
#include <cstddef>
#include <cstdint>
#include <thread>

#include "tests/fuzz/threads.h"

namespace {
constexpr size_t kCounters = size_t{1} << 14;
[[gnu::section("__libfuzzer_extra_counters")]] volatile uint8_t counters[kCounters];
}  // namespace

extern "C" [[gnu::no_sanitize_address]] void __sanitizer_cov_trace_pc() {
  const auto pc = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  counters[(pc ^ pc >> 14) % kCounters] = 1;  // how often: many more inputs, few other bugs
}

// Stands in for that of libstdc++: the C door's pool then has as many threads as the stub's.
unsigned std::thread::hardware_concurrency() noexcept { return intarsia::fuzz::Threads(); }
