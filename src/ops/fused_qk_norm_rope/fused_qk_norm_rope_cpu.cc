#include "src/core/dispatch.h"
#include "src/core/index_vector.h"
#include "src/norm/norm_row_cpu.h"
#include "src/ops/fused_qk_norm_rope/fused_qk_norm_rope.h"
#include "src/rotary/turn_cpu.h"

namespace intarsia {

namespace {

template <class T, class C>
Status RunHeads(const FusedQkNormRope& op, const CpuContext& context) {
  const int64_t tokens = op.qkv.dim(0), heads = op.qkv.dim(1), d = op.qkv.dim(2);
  const int64_t r = op.cos_sin_cache.dim(1);
  const NormRow<T> q_norm(d, op.q_weight, op.eps, "once"), k_norm(d, op.k_weight, op.eps, "once");
  const IndexVector positions = ToIndexVector(op.positions);
  ForRows(context, tokens, heads * d, [&](int64_t token) {
    float angles[kMaxNormedHeadDim], turned[kMaxNormedHeadDim];
    LoadAngles(op.cos_sin_cache.as<const C>(), op.cos_sin_cache.dim(0), r, positions.At(token),
               false, angles);
    for (int64_t head = 0; head < heads; ++head) {
      const T* x = op.qkv.as<const T>() + token * op.qkv.stride(0) + head * op.qkv.stride(1);
      T* out = op.out.as<T>() + token * op.out.stride(0) + head * op.out.stride(1);
      if (head >= op.num_turned()) {
        if (out != x) std::memcpy(out, x, static_cast<size_t>(d) * sizeof(T));
        continue;
      }
      const NormRow<T>& norm = head < *op.num_heads_q ? q_norm : k_norm;
      const auto value = [&](int64_t i, int lanes) { return LoadN(x + i, lanes); };
      norm.ForEach(value, norm.Rstd(value),
                   [&](int64_t i, VecF y, int lanes) { StoreN(turned + i, y, lanes); });
      (op.is_neox ? TurnNeox<float> : TurnGptj<float>)(turned, angles, r / 2, turned);
      ForLanes(d, [&](int64_t i, int lanes) { StoreN(out + i, LoadN(turned + i, lanes), lanes); });
    }
  });
  return {};
}

}  // namespace

template <>
Status RunCpu<kIsa>(const FusedQkNormRope& op, const CpuContext& context) {
  return DispatchDType<kF32, kF16, kBF16>("qkv", op.qkv.dtype, [&]<DType kType>() {
    return DispatchDType<kF32, kF16, kBF16>(
        "cos_sin_cache", op.cos_sin_cache.dtype,
        [&]<DType kTable>() { return RunHeads<CpuT<kType>, CpuT<kTable>>(op, context); });
  });
}

}  // namespace intarsia
