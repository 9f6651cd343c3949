// Copies of blocks on the CPU. For <op>_cpu.cc files only.
#pragma once
#include <cstring>

#include "src/cache/blocks.h"
#include "src/core/cpu/rows.h"

namespace intarsia {
namespace {

inline Status CopyBlocksOnCpu(const cache::BlockCopies& copies, const CpuContext& context) {
  const int64_t bytes = copies.block_bytes;
  ForRows(context, copies.outer * copies.pairs, bytes / 4, [&](int64_t row) {
    const int64_t outer = row / copies.pairs;
    int64_t from = 0, to = 0;
    if (!copies.Find(row % copies.pairs, from, to)) return;
    const char* source =
        static_cast<const char*>(copies.from) + (outer * copies.num_from + from) * bytes;
    char* target = static_cast<char*>(copies.to) + (outer * copies.num_to + to) * bytes;
    if (source != target) std::memcpy(target, source, static_cast<size_t>(bytes));
  });
  return {};
}

}  // namespace
}  // namespace intarsia
