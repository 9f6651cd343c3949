#include "src/ops/paged_attention/paged_attention.h"

#include "src/attention/params.h"
#include "src/attention/workspace.h"

namespace intarsia {

Status PagedAttention::ToParams(attention::Params& params) const {
  attention::SetQuery(params, query, cu_seqlens_q, out, lse, scale, softcap);
  INTARSIA_RETURN_IF_ERROR(attention::SetPagedCache(params, {layout, kv_cache_dtype}, key_cache,
                                                    value_cache, layer, block_table, seqused_k));
  INTARSIA_RETURN_IF_ERROR(attention::SetScales(params, std::nullopt, k_scale, v_scale));
  params.sinks = sinks ? sinks->as<const float>() : nullptr;
  params.alibi_slopes = ToScaleView(alibi_slopes);
  params.num_seqs_device = ToIndexVector(num_seqs);
  if (sliding_window && *sliding_window < 1)
    return InvalidArgument(Text("sliding_window is ", *sliding_window, ", expected at least 1"));
  params.window_left = sliding_window ? *sliding_window - 1 : -1;
  params.window_right = 0;
  params.attention_chunk = attention_chunk;
  attention::SetWorkspace(params, workspace);
  return attention::CheckParams("query", params);
}

Status PagedAttention::Check() const {
  attention::Params params;
  return ToParams(params);
}

std::array<int64_t, 2> PagedAttention::WorkspaceDims() const {
  attention::Params params;
  if (!ToParams(params).ok()) return {};  // Check has said why
  return attention::WorkspaceDims(params);
}

}  // namespace intarsia
