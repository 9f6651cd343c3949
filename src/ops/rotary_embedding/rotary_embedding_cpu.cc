#include "src/core/cpu/rows.h"
#include "src/core/cpu/simd.h"
#include "src/core/dispatch.h"
#include "src/core/index_vector.h"
#include "src/ops/rotary_embedding/rotary_embedding.h"
#include "src/rotary/turn_cpu.h"

namespace intarsia {
namespace {

// As LoadAngles, where each pair has a position of its own among those of a token.
template <class C>
void LoadAnglesOfPairs(const RotaryEmbedding& op, const IndexVector& positions, int64_t token,
                       float* angles) {
  const C* table = op.cos_sin_cache.as<const C>();
  const int64_t max_pos = op.cos_sin_cache.dim(0), r = op.cos_sin_cache.dim(1), half = r / 2,
                axes = op.num_positions();
  const IndexVector pair_axes = ToIndexVector(op.pair_axes);
  for (int64_t i = 0; i < half; ++i) {
    const int64_t axis = pair_axes.At(i);
    const int64_t position = axis >= 0 && axis < axes ? positions.At(token * axes + axis) : -1;
    const bool inside = position >= 0 && position < max_pos;
    const auto at = [&](int64_t column) { return LoadN(table + position * r + column, 1)[0]; };
    angles[i] = inside ? at(i) : 1.0f;
    angles[half + i] = inside ? (op.inverse ? -at(half + i) : at(half + i)) : 0.0f;
  }
}

template <class T, class C>
void TurnHeads(const RotaryEmbedding& op, const CpuContext& context, const TensorView& in,
               const TensorView& result) {
  const int64_t d = op.head_dim(), tokens = op.tokens(),
                heads = tokens && d ? in.size() / tokens / d : 0;
  const RotaryEmbedding::Strides from = op.StridesOf(in), to = op.StridesOf(result);
  const int64_t r = op.cos_sin_cache.dim(1), first = op.rope_dim_offset;
  const IndexVector positions = ToIndexVector(op.positions);
  ForRows(context, tokens, heads * d, [&](int64_t token) {
    float angles[kMaxRotaryDim];
    if (op.pair_axes)
      LoadAnglesOfPairs<C>(op, positions, token, angles);
    else
      LoadAngles(op.cos_sin_cache.as<const C>(), op.cos_sin_cache.dim(0), r, positions.At(token),
                 op.inverse, angles);
    for (int64_t head = 0; head < heads; ++head) {
      const T* x = in.as<const T>() + token * from.token + head * from.head;
      T* out = result.as<T>() + token * to.token + head * to.head;
      if (out != x) std::memmove(out, x, static_cast<size_t>(d) * sizeof(T));
      (op.is_neox ? TurnNeox<T> : TurnGptj<T>)(x + first, angles, r / 2, out + first);
    }
  });
}

}  // namespace

template <>
Status RunCpu<kIsa>(const RotaryEmbedding& op, const CpuContext& context) {
  return DispatchDType<kF32, kF16, kBF16>("query", op.query.dtype, [&]<DType kType>() {
    return DispatchDType<kF32, kF16, kBF16>(
        "cos_sin_cache", op.cos_sin_cache.dtype, [&]<DType kTable>() -> Status {
          TurnHeads<CpuT<kType>, CpuT<kTable>>(op, context, op.query, op.query_out);
          if (op.key) TurnHeads<CpuT<kType>, CpuT<kTable>>(op, context, *op.key, op.key_out);
          return {};
        });
  });
}

}  // namespace intarsia
