// Norms whose rows become codes, each block of a row by a scale of its own; a row may be one block.
// For <op>_cpu.cc files only.
#pragma once
#include "src/core/context.h"
#include "src/core/cpu/simd_8bit.h"
#include "src/core/dispatch.h"
#include "src/norm/norm_row_cpu.h"
#include "src/quant/scaling.h"

namespace intarsia {
namespace {

// The blocks of one row: how many, and columns of each.
struct Blocks {
  int64_t count, columns;
};

// Writes the codes and scales of one row.
//   each(first, columns, use)  gives use(i, y, lanes) each register of those columns' norm
//   counts(y, lanes)           what of a register the block's scale must hold
//   last(i, lanes)             is called when no operand at i is read again
template <class T, class Code, class Each, class Counts, class Last>
[[gnu::always_inline]] inline void QuantizeRow(Blocks blocks, const RowRule& rule, Code* q,
                                               float* scales, Each each, Counts counts, Last last) {
  for (int64_t block = 0; block < blocks.count; ++block) {
    const int64_t first = block * blocks.columns;
    VecF largest = {};
    each(first, blocks.columns,
         [&](int64_t, VecF y, int lanes) { largest = Max(Abs(counts(y, lanes)), largest); });
    const auto [scale, scaling] = rule.Of(Largest(largest));
    scales[block] = scale;
    each(first, blocks.columns, [&, scaling = scaling](int64_t i, VecF y, int lanes) {
      last(i, lanes);
      StoreN(q + i, scaling(RoundTo(y, T{})), lanes);
    });
  }
}

// RMS norms of x, or of x + residual, which is stored. `Op` has the operands of
// rms_norm_per_block_quant.
template <class Code, class Op>
Status RunQuantizedRms(const Op& op, int64_t rows, Blocks blocks, const CpuContext& context) {
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = CpuT<kType>;
    const int64_t n = op.x.dim(-1), x_stride = RowStride(op.x);
    const int64_t residual_stride = op.residual ? RowStride(*op.residual) : 0;
    const int64_t residual_out_stride = op.residual ? RowStride(op.residual_out) : 0;
    const NormRow<T> norm(n, op.weight, op.eps, op.rounding);
    const RowRule rule = NormedRule(op.quant_dtype, op.scale_ub);
    ForRows(context, rows, n, [&](int64_t row) {
      SumRow<T> sum{op.x.template as<const T>() + row * x_stride};
      if (op.residual)
        sum = {sum.x, op.residual->template as<const T>() + row * residual_stride,
               op.residual_out.template as<T>() + row * residual_out_stride};
      const auto value = [&](int64_t i, int lanes) {
        const VecF unrounded = sum.At(i, lanes);
        return norm.before_weight() ? unrounded : RoundTo(unrounded, T{});
      };
      const float rstd = norm.Rstd(value);
      QuantizeRow<T>(
          blocks, rule, op.q.template as<Code>() + row * n,
          op.scale.template as<float>() + row * blocks.count,
          [&](int64_t first, int64_t columns, auto use) {
            norm.ForPart(first, columns, value, rstd, use);
          },
          [](VecF y, int) { return RoundTo(y, T{}); },
          [&](int64_t i, int lanes) { sum.Store(i, lanes); });  // it may be written in place
    });
    return {};
  });
}

}  // namespace
}  // namespace intarsia
