#include <cstring>

#include "src/core/cpu/rows.h"
#include "src/core/cpu/simd_8bit.h"
#include "src/core/dispatch.h"
#include "src/ops/gather_cache/gather_cache.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const GatherCache& op, const CpuContext& context) {
  const GatherPlaces places(op);
  const int64_t rows = op.dst.dim(0), n = op.dst.dim(1);
  if (n == 0) return {};
  if (!op.converts()) {
    const int64_t bytes = n * Bytes(op.dst.dtype);
    ForRows(context, rows, n, [&](int64_t row) {
      const int64_t slot = places.SlotOf(row);
      if (slot >= 0)
        std::memcpy(op.out.as<char>() + row * bytes, op.cache.as<const char>() + slot * bytes,
                    static_cast<size_t>(bytes));
    });
    return {};
  }
  const float scale = op.scale ? *op.scale->as<const float>() : 1.0f;
  return DispatchDType<kF8E4M3, kF8E5M2>("cache", op.stored(), [&]<DType kCache>() -> Status {
    return DispatchDType<kF32, kF16, kBF16>("dst", op.dst.dtype, [&]<DType kType>() -> Status {
      ForRows(context, rows, n, [&](int64_t row) {
        const int64_t slot = places.SlotOf(row);
        if (slot < 0) return;
        const auto* from = op.cache.as<const CpuT<kCache>>() + slot * n;
        auto* to = op.out.as<CpuT<kType>>() + row * n;
        ForLanes(n, [&](int64_t i, int lanes) {
          StoreN(to + i, LoadN(from + i, lanes) * scale, lanes);
        });
      });
      return {};
    });
  });
}

}  // namespace intarsia
