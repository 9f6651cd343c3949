#include "src/ops/fused_qk_norm_rope/fused_qk_norm_rope.h"

namespace intarsia {

Status FusedQkNormRope::Check() const {
  const int64_t heads = qkv.dim(1), d = qkv.dim(2), r = cos_sin_cache.dim(1);
  for (const auto& [name, count] :
       {std::pair("num_heads_q", &num_heads_q), std::pair("num_heads_k", &num_heads_k)}) {
    if (!*count) return InvalidArgument(Text(name, " is missing"));
    if (**count < 0 || **count > heads)
      return InvalidArgument(Text(name, " is ", **count, " but qkv has ", heads, " heads"));
  }
  if (num_turned() > heads)
    return InvalidArgument(Text("num_heads_q=", *num_heads_q, " and num_heads_k=", *num_heads_k,
                                " are more than the ", heads, " heads of qkv"));
  if (r % 2 != 0)
    return InvalidArgument(Text("cos_sin_cache has r=", r, ", expected an even number"));
  if (r > d) return InvalidArgument(Text("cos_sin_cache has r=", r, " but qkv has d=", d));
  if (d > kMaxNormedHeadDim)
    return Unimplemented(Text("qkv has d=", d, "; built are up to ", kMaxNormedHeadDim));
  return {};
}

}  // namespace intarsia
