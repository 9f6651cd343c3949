#include <array>
#include <memory>

#include "src/core/cpu/isa.h"
#include "src/core/cpu/simd.h"
#include "src/ops/rotary_embedding_and_cache/rotary_embedding_and_cache.h"

namespace intarsia {

// One after the other: the keys of a step between them are small beside what attention reads next.
template <>
Status RunCpu<kIsa>(const RotaryEmbeddingAndCache& op, const CpuContext& context) {
  const std::array dims{op.qkv.dim(0), op.num_kv_heads(), op.qkv.dim(2)};
  TensorView key;
  INTARSIA_RETURN_IF_ERROR(MakeDense(nullptr, op.qkv.dtype, dims, key));
  const auto memory =
      std::make_unique_for_overwrite<char[]>(static_cast<size_t>(key.size() * Bytes(key.dtype)));
  key.data = memory.get();
  if (op.q_weight) {
    INTARSIA_RETURN_IF_ERROR(op.NormedQuery().Run(context));
    INTARSIA_RETURN_IF_ERROR(op.NormedKey(key).Run(context));
  } else {
    INTARSIA_RETURN_IF_ERROR(op.Rotation(key).Run(context));
  }
  return op.CacheWrite(key).Run(context);
}

}  // namespace intarsia
