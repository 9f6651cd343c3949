#include "src/matmul/cpu/product.h"

#include <algorithm>
#include <vector>

#include "src/core/cpu/isa.h"

namespace intarsia::matmul {
namespace {

// Rows that are packed at a time: all, or as many as this memory holds.
constexpr int64_t kMostPackedFloats = int64_t{1} << 22;

int64_t PackedFloats(const Product& product, const Group& group) {
  const int64_t whole = group.rows / kBlockRows;
  return whole * BlockFloats(product, kBlockRows, group.count) +
         BlockFloats(product, group.rows % kBlockRows, group.count);
}

// The part of a group that begins `rows` further on.
Group From(const Product& product, Group group, int64_t rows) {
  group.x += rows * product.x_row;
  group.out += rows * product.n;
  group.first += rows;
  group.rows -= rows;
  return group;
}

// Cuts what has more packed rows than there is memory for.
void AddParts(const Product& product, Group group, std::vector<Group>& parts) {
  const int64_t block = std::max<int64_t>(BlockFloats(product, kBlockRows, group.count), 1);
  const int64_t most = std::max<int64_t>(kMostPackedFloats / block, 1) * kBlockRows;
  for (; group.rows > most; group = From(product, group, most)) {
    parts.push_back(group);
    parts.back().rows = most;
  }
  if (group.rows > 0) parts.push_back(group);
}

}  // namespace

Status Run(const Product& product, std::span<const Group> groups, const CpuContext& context) {
  if (product.n == 0) return {};
  std::vector<Group> parts;
  for (const Group& group : groups) AddParts(product, group, parts);
  AlignedFloats memory;
  int64_t room = 0;
  for (size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
    int64_t floats = 0;
    for (; end < parts.size(); ++end) {
      const int64_t of_part = PackedFloats(product, parts[end]);
      if (end > begin && floats + of_part > kMostPackedFloats) break;
      parts[end].packed = floats;
      floats += of_part;
    }
    if (floats > room) memory = MakeAligned(room = floats);
    const Pass pass{product, std::span(parts).subspan(begin, end - begin), memory.get()};
    INTARSIA_RETURN_IF_ERROR(RunOnCpu(pass, context));
  }
  return {};
}

}  // namespace intarsia::matmul
