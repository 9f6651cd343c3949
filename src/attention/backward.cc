#include "src/attention/backward.h"

#include "src/attention/params.h"
#include "src/core/checked.h"

namespace intarsia::attention {

Status CheckBackward(const BackwardParams& params) {
  const Params& p = params.forward;
  INTARSIA_RETURN_IF_ERROR(CheckParams("q", p));
  if (p.head_dim > kMaxTiledHeadDim)
    return Unimplemented(
        Text("q has d=", p.head_dim, "; built for the gradient are up to ", kMaxTiledHeadDim));
  if (p.cache.v_head_dim != p.head_dim)
    return Unimplemented(Text("v has dv=", p.cache.v_head_dim, " where q has d=", p.head_dim,
                              "; built are equal ones"));
  if (BoundedProduct({p.num_tokens, p.num_heads}) > kMaxCount || p.max_len_k > kMaxCount)
    return Unimplemented(Text("q has ", BoundedProduct({p.num_tokens, p.num_heads}),
                              " rows of all heads and k ", p.max_len_k, "; built are up to ",
                              kMaxCount));
  if (p.num_seqs > kMaxCount || p.num_kv_heads() > kMaxCount)
    return Unimplemented(Text("cu_seqlens_q has b=", p.num_seqs, " and k has hk=", p.num_kv_heads(),
                              "; built are up to ", kMaxCount));
  return {};
}

Status CheckWorkspace(const BackwardParams& params) {
  const int64_t got = params.forward.max_splits * params.forward.workspace_floats;
  const int64_t needed = BackwardWorkspace(params).floats();
  if (got >= needed) return {};
  return InvalidArgument(Text("workspace holds ", got, " numbers, expected ", needed));
}

}  // namespace intarsia::attention
