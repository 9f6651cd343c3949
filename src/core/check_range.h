// Looks at indices on the host, for INTARSIA_CHECK=1.
#pragma once
#include <cstdint>
#include <limits>
#include <string_view>

#include "src/core/context.h"
#include "src/core/status.h"
#include "src/core/tensor_view.h"

namespace intarsia {

inline constexpr int64_t kAnyNegative =
    std::numeric_limits<int64_t>::min();  // negative means "skip"

// Whether low <= index < high for each element of a dense i32 or i64 tensor named `what`.
Status CheckRange(const CpuContext&, std::string_view what, const TensorView& indices, int64_t low,
                  int64_t high);
// The same, by a copy to the host and a wait for it.
Status CheckRange(const CudaContext&, std::string_view what, const TensorView& indices, int64_t low,
                  int64_t high);

}  // namespace intarsia
