#include "ops/negate/negate.h"
#include "src/core/cpu/rows.h"
#include "src/core/cpu/simd.h"
#include "src/core/dispatch.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const Negate& op, const CpuContext& context) {
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    ForRows(context, op.x.size(), 1, [&](int64_t i) {
      StorePart(op.out.as<T>() + i, -LoadPart(op.x.as<const T>() + i, 1), 1);
    });
    return {};
  });
}

}  // namespace intarsia
