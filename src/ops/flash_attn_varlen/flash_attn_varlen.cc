#include "src/ops/flash_attn_varlen/flash_attn_varlen.h"

#include "src/attention/params.h"
#include "src/attention/workspace.h"
#include "src/core/dispatch.h"

namespace intarsia {

Status FlashAttnVarlen::ToParams(attention::Params& params) const {
  attention::SetQuery(params, q, cu_seqlens_q, out, lse, scale, softcap);
  if (block_table) {
    if (!seqused_k) return InvalidArgument("seqused_k is missing, block_table needs it");
    INTARSIA_RETURN_IF_ERROR(attention::SetPagedCache(params, {layout, kv_cache_dtype}, k, v, layer,
                                                      *block_table, *seqused_k));
  } else {
    if (!v) return InvalidArgument("v is missing; it may be absent only when block_table is given");
    if (!cu_seqlens_k)
      return InvalidArgument(
          "cu_seqlens_k is missing; it may be absent only when block_table is given");
    if (layer) return InvalidArgument("layer is given without block_table");
    if (kv_cache_dtype != "auto")
      return InvalidArgument(Text("kv_cache_dtype is ", kv_cache_dtype, " without block_table"));
    attention::SetDenseCache(params, k, *v, *cu_seqlens_k, seqused_k);
  }
  params.window_left = window_left;
  params.window_right = is_causal ? 0 : window_right;
  params.attention_chunk = attention_chunk;
  INTARSIA_RETURN_IF_ERROR(attention::SetScales(params, q_scale, k_scale, v_scale));
  params.alibi_slopes = ToScaleView(alibi_slopes);
  params.sinks = sinks ? sinks->as<const float>() : nullptr;
  params.leftpad_k = ToIndexVector(leftpad_k);
  const bool fp8 = IsFp8(q.dtype);
  if (fp8) params.out_dtype = out_dtype == "f16" ? kF16 : kBF16;
  if (!fp8 && out_dtype != "auto" && out_dtype != Name(q.dtype))
    return InvalidArgument(Text("out_dtype is ", out_dtype, " but q has ", Name(q.dtype),
                                "; another one is for fp8 q alone"));
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
