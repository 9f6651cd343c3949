#include "src/ops/flash_attn_varlen/flash_attn_varlen.h"

#include "src/attention/params.h"

namespace intarsia {

Status FlashAttnVarlen::ToParams(attention::Params& params) const {
  attention::SetQuery(params, q, cu_seqlens_q, out, lse, scale, softcap);
  if (block_table) {
    if (!seqused_k) return InvalidArgument("seqused_k is missing, block_table needs it");
    INTARSIA_RETURN_IF_ERROR(
        attention::SetPagedCache(params, layout, k, v, layer, *block_table, *seqused_k));
  } else {
    if (!v) return InvalidArgument("v is missing; it may be absent only when block_table is given");
    if (!cu_seqlens_k)
      return InvalidArgument(
          "cu_seqlens_k is missing; it may be absent only when block_table is given");
    if (layer) return InvalidArgument("layer is given without block_table");
    attention::SetDenseCache(params, k, *v, *cu_seqlens_k, seqused_k);
  }
  params.window_left = window_left;
  params.window_right = is_causal ? 0 : window_right;
  attention::SetWorkspace(params, workspace);
  return attention::CheckParams("q", params);
}

Status FlashAttnVarlen::Check() const {
  attention::Params params;
  return ToParams(params);
}

std::array<int64_t, 2> FlashAttnVarlen::WorkspaceDims() const {
  attention::Params params;
  if (!ToParams(params).ok()) return {};  // Check has said why
  return attention::WorkspaceDims(params);
}

}  // namespace intarsia
