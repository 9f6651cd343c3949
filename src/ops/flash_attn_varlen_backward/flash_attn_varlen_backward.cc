#include "src/ops/flash_attn_varlen_backward/flash_attn_varlen_backward.h"

#include <algorithm>

#include "src/attention/params.h"

namespace intarsia {

attention::BackwardParams FlashAttnVarlenBackward::ToParams() const {
  attention::BackwardParams params;
  attention::SetQuery(params.forward, q, cu_seqlens_q, out, lse, scale, softcap);
  attention::SetDenseCache(params.forward, k, v, cu_seqlens_k, seqused_k);
  attention::SetWorkspace(params.forward, workspace);
  params.forward.window_left = std::min(window_left, attention::kMaxCount);
  params.forward.window_right = is_causal ? 0 : std::min(window_right, attention::kMaxCount);
  params.forward.alibi_slopes = ToScaleView(alibi_slopes);
  params.forward.sinks = sinks ? sinks->as<const float>() : nullptr;
  params.dout = dout.data;
  params.dlse = dlse ? dlse->as<const float>() : nullptr;
  params.dq = dq.data;
  params.dk = dk.data;
  params.dv = dv.data;
  params.dsinks = dsinks.as<float>();
  params.deterministic = deterministic;
  return params;
}

Status FlashAttnVarlenBackward::Check() const { return attention::CheckBackward(ToParams()); }

std::array<int64_t, 2> FlashAttnVarlenBackward::WorkspaceDims() const {
  const attention::BackwardParams params = ToParams();
  return {1, attention::BackwardWorkspace(params).floats()};
}

}  // namespace intarsia
