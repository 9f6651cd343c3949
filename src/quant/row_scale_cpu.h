// Quantization of rows by their own scales on the CPU. For <op>_cpu.cc files only, like simd.h.
#pragma once
#include "src/core/cpu/rows.h"
#include "src/core/cpu/simd_8bit.h"
#include "src/core/dispatch.h"
#include "src/quant/row_scale.h"

namespace intarsia {
namespace {

// An int8 that numbers become by rounding toward zero.
struct TruncatedI8 {
  int8_t value;
};
[[gnu::always_inline]] inline VecU8 Round(VecF x, TruncatedI8) {
  const VecF low = x > -128.0f ? x : Splat(-128.0f);  // of NaN, too
  const VecF clamped = low < 127.0f ? low : Splat(127.0f);
  const VecU codes = reinterpret_cast<VecU>(__builtin_convertvector(clamped, VecI));
  return NarrowToBytes(x == x ? codes & 0xffu : VecU{});
}

// The largest absolute value of a row, NaN left out.
template <class T>
[[gnu::always_inline]] inline float LargestAbs(const T* x, int64_t n) {
  VecF largest = {};
  ForLanes(n, [&](int64_t i, int lanes) { largest = Max(Abs(LoadN(x + i, lanes)), largest); });
  return Largest(largest);
}

// Code: F8E4M3, I8 or TruncatedI8.
template <class Code>
Status RunRowQuant(const RowQuant& op, const CpuContext& context) {
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    ForRows(context, op.scale.size(), op.n, [&](int64_t row) {
      const T* x = op.x.as<const T>() + row * op.n;
      Code* q = op.q.as<Code>() + row * op.n;
      const auto [scale, scaling] = op.rule.Of(LargestAbs(x, op.n));
      op.scale.as<float>()[row] = scale;
      ForLanes(op.n, [&, scaling = scaling](int64_t i, int lanes) {
        StoreN(q + i, scaling(LoadN(x + i, lanes)), lanes);
      });
    });
    return {};
  });
}

}  // namespace
}  // namespace intarsia
