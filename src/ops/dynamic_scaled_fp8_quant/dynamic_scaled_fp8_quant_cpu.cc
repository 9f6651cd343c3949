#include "src/core/round.h"
#include "src/ops/dynamic_scaled_fp8_quant/dynamic_scaled_fp8_quant.h"
#include "src/quant/row_scale_cpu.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const DynamicScaledFp8Quant& op, const CpuContext& context) {
  // The largest is the same in any order, so the result does not depend on the threads.
  constexpr int64_t kMaxParts = 256;
  float parts[kMaxParts] = {}, largest = 0.0f;
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    const T* x = op.x.as<const T>();
    auto* q = op.q.as<F8E4M3>();
    const int64_t size = op.x.size();
    const int64_t part = std::max(kTileElements, CeilDiv(size, kMaxParts));
    const int64_t count = CeilDiv(size, part);
    context.ParallelFor(count, [&](int64_t i) {
      parts[i] = LargestAbs(x + i * part, std::min(part, size - i * part));
    });
    for (const float of_part : parts) largest = of_part > largest ? of_part : largest;
    const auto [scale, scaling] = DynamicScaledFp8Quant::kRule.Of(largest);
    *op.scale.as<float>() = scale;
    context.ParallelFor(count, [&, scaling = scaling](int64_t i) {
      ForLanes(std::min(part, size - i * part), [&](int64_t j, int lanes) {
        StoreN(q + i * part + j, scaling(LoadN(x + i * part + j, lanes)), lanes);
      });
    });
    return {};
  });
}

}  // namespace intarsia
