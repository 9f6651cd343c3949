// Kernels of products count rows, columns, groups and the tiles of a group with 32 bits.
#pragma once
#include <initializer_list>

#include "src/core/status.h"

namespace intarsia::matmul {

struct Count {
  const char* name;
  int64_t value;
};

inline Status FitCounts(std::initializer_list<Count> counts) {
  constexpr int64_t kLimit = int64_t{1} << 30;
  for (const auto& [name, value] : counts)
    if (value >= kLimit)
      return Unimplemented(Text(name, " is ", value, ", expected less than ", kLimit, " on GPUs"));
  return {};
}

}  // namespace intarsia::matmul
