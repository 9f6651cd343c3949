// Quantization by given scales on the CPU. For <op>_cpu.cc files only, like simd.h.
#pragma once
#include <type_traits>

#include "src/core/cpu/rows.h"
#include "src/core/cpu/simd_8bit.h"
#include "src/core/dispatch.h"
#include "src/quant/given_scale.h"
#include "src/quant/zero_point_cpu.h"

namespace intarsia {
namespace {

// Each number by a scale of its own.
[[gnu::always_inline]] inline VecF Scaled(VecF x, VecF scale, bool divide) {
  const VecF r = 1.0f / scale;
  return divide ? x / scale : x * (r > FLT_MAX ? Splat(FLT_MAX) : r);
}

// Code: F8E4M3 or I8.
template <class Code>
[[gnu::always_inline]] inline void StoreCodes(Code* q, VecF scaled, const int32_t* azp, int lanes) {
  if constexpr (std::is_same_v<Code, I8>)
    if (azp) scaled = Shifted(scaled, *azp);
  StoreN(q, scaled, lanes);
}

template <class Code>
Status RunGivenScale(const GivenScaleQuant& op, const CpuContext& context,
                     const Optional& zero_point = {}) {
  constexpr bool kDivide = std::is_same_v<Code, I8>;
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    const int64_t n = op.x.dim(-1), rows = Rows(op.x, n);
    if (rows == 0) return {};
    const GivenScales scales(op.scale, n);
    const int32_t* azp = zero_point ? zero_point->as<const int32_t>() : nullptr;
    ForRows(context, rows, n, [&](int64_t row) {
      const float* scale = scales.data + row * scales.row_stride;
      const T* x = op.x.as<const T>() + row * n;
      Code* q = op.q.as<Code>() + row * n;
      if (scales.columns == 1) {
        ForLanes(n, [&](int64_t i, int lanes) {
          const VecF scaled = Scaled(LoadN(x + i, lanes), LoadN(scale + i, lanes), kDivide);
          StoreCodes(q + i, scaled, azp, lanes);
        });
        return;
      }
      for (int64_t end = n; end > 0; end -= scales.columns) {
        const Scaling scaling = GivenScale(*scale++, kDivide);
        ForLanes(scales.columns, [&](int64_t i, int lanes) {
          StoreCodes(q + i, scaling(LoadN(x + i, lanes)), azp, lanes);
        });
        x += scales.columns, q += scales.columns;
      }
    });
    return {};
  });
}

}  // namespace
}  // namespace intarsia
