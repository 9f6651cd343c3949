// The rows of groups, read on the host.
#pragma once
#include <vector>

#include "src/matmul/groups.h"

namespace intarsia::matmul {

// The rows of each group at hand; they follow each other.
inline std::vector<RowRange> ReadGroups(const GroupSizes& groups) {
  std::vector<RowRange> ranges(static_cast<size_t>(groups.count));
  const int64_t first = groups.Offset();
  int64_t begin = 0;
  for (int64_t i = 0; i < first; ++i) begin = groups.Sum(begin, groups.SizeAt(i));
  for (int64_t i = 0; i < groups.count; ++i) {
    const int64_t group = first + i;
    const bool exists = group >= 0 && group < groups.all;
    const int64_t end = exists ? groups.Sum(begin, groups.SizeAt(group)) : begin;
    ranges[static_cast<size_t>(i)] = {begin, end};
    begin = end;
  }
  return ranges;
}

}  // namespace intarsia::matmul
