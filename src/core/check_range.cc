#include "src/core/check_range.h"

#include "src/core/index_vector.h"

namespace intarsia {

Status CheckRange(const CpuContext&, std::string_view what, const TensorView& indices, int64_t low,
                  int64_t high) {
  const IndexVector vector = ToIndexVector(indices);
  for (int64_t i = 0; i < indices.size(); ++i) {
    const int64_t index = vector.At(i);
    if (index < low || index >= high)
      return InvalidArgument(Text(
          what, "[", i, "] is ", index, ", expected less than ", high,
          low == kAnyNegative ? std::string(" (or negative: skip)") : Text(" and at least ", low)));
  }
  return {};
}

}  // namespace intarsia
