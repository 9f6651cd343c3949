#include <cmath>

#include "src/core/cpu/rows.h"
#include "src/core/cpu/simd_8bit.h"
#include "src/core/dispatch.h"
#include "src/ops/dynamic_scaled_int8_azp_quant/dynamic_scaled_int8_azp_quant.h"
#include "src/quant/zero_point_cpu.h"

namespace intarsia {

namespace {

struct Ends {
  float least, most;
};

// Of a row, NaN left out.
template <class T>
Ends EndsOf(const T* x, int64_t n) {
  VecF most = Splat(-INFINITY), negative = most;
  ForLanes(n, [&](int64_t i, int lanes) {
    // The lanes behind the end repeat the first element.
    VecF value = LoadN(x + i, lanes);
    for (int lane = lanes; lane < kLanes; ++lane) value[lane] = value[0];
    most = Max(value, most);
    negative = Max(-value, negative);
  });
  return {-Largest(negative), Largest(most)};
}

}  // namespace

template <>
Status RunCpu<kIsa>(const DynamicScaledInt8AzpQuant& op, const CpuContext& context) {
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    const int64_t n = op.x.dim(-1);
    ForRows(context, op.scale.size(), n, [&](int64_t row) {
      const T* x = op.x.as<const T>() + row * n;
      I8* q = op.q.as<I8>() + row * n;
      const auto [least, most] = EndsOf(x, n);
      const float scale = least < most ? (most - least) / 255.0f : 0.0f;
      const int32_t azp = scale == 0.0f ? 0 : RoundToInteger(Splat(-128.0f - least / scale))[0];
      op.scale.as<float>()[row] = scale;
      op.azp.as<int32_t>()[row] = azp;
      ForLanes(n, [&](int64_t i, int lanes) {
        const VecF scaled = scale == 0.0f ? VecF{} : LoadN(x + i, lanes) / scale;
        StoreN(q + i, Shifted(scaled, azp), lanes);
      });
    });
    return {};
  });
}

}  // namespace intarsia
