#include "src/core/cpu/rows.h"
#include "src/core/cpu/simd.h"
#include "src/core/dispatch.h"
#include "src/core/round.h"
#include "src/ops/simple_add/simple_add.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const SimpleAdd& op, const CpuContext& context) {
  return DispatchDType<kF32, kF16, kBF16>("a", op.a.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    const int64_t size = op.a.size(), n = kTileElements;
    ForRows(context, CeilDiv(size, n), n, [&](int64_t row) {
      const int64_t start = row * n;
      ForLanes(std::min(n, size - start), [&](int64_t i, int lanes) {
        const VecF sum = LoadN(op.a.as<const T>() + start + i, lanes) +
                         LoadN(op.b.as<const T>() + start + i, lanes);
        StoreN(op.out.as<T>() + start + i, sum, lanes);
      });
    });
    return {};
  });
}

}  // namespace intarsia
