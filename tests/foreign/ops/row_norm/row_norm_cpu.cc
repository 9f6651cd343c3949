#include <cmath>

#include "ops/row_norm/row_norm.h"
#include "src/core/cpu/rows.h"
#include "src/core/cpu/simd.h"
#include "src/core/dispatch.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const RowNorm& op, const CpuContext& context) {
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    const int64_t n = op.x.dim(-1), stride = RowStride(op.x);
    ForRows(context, op.out.size(), n, [&](int64_t row) {
      const T* x = op.x.as<const T>() + row * stride;
      VecF squares = {};
      ForLanes(n, [&](int64_t i, int lanes) {
        const VecF value = LoadN(x + i, lanes);  // its lanes past the end are 0
        squares += value * value;
      });
      StorePart(op.out.as<T>() + row, Splat(std::sqrt(Sum(squares))), 1);
    });
    return {};
  });
}

}  // namespace intarsia
