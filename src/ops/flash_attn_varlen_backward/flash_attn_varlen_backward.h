// The gradient of flash_attn_varlen over dense K and V; src/attention/backward.h has the
// mathematics.
#pragma once
#include "src/attention/backward.h"
#include "src/core/op.h"

namespace intarsia {

struct FlashAttnVarlenBackward {
  TensorView dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k;
  Optional seqused_k, alibi_slopes, sinks, dlse;
  std::optional<float> scale;
  bool is_causal = false;
  int64_t window_left = -1, window_right = -1;
  float softcap = 0.0f;
  bool deterministic = false;
  TensorView dq, dk, dv, dsinks, workspace;

  static constexpr auto kSpec = MakeSpec(
      "flash_attn_varlen_backward", "The gradient of flash_attn_varlen with dense keys and values.",
      "Dao 2023, arXiv:2307.08691, algorithm 2",
      In("dout", &FlashAttnVarlenBackward::dout, "tq h d", "T", "the gradient of out"),
      In("q", &FlashAttnVarlenBackward::q, "tq h d", "T", "queries, sequence after sequence")
          .Takes(Access::kRows),
      In("k", &FlashAttnVarlenBackward::k, "tk hk d", "T", "keys").Takes(Access::kRows),
      In("v", &FlashAttnVarlenBackward::v, "tk hk d", "T", "values").Takes(Access::kRows),
      In("out", &FlashAttnVarlenBackward::out, "tq h d", "T", "what flash_attn_varlen gave"),
      In("lse", &FlashAttnVarlenBackward::lse, "h tq", "f32", "what flash_attn_varlen gave"),
      In("cu_seqlens_q", &FlashAttnVarlenBackward::cu_seqlens_q, "b+1", "i32|i64",
         "where each sequence starts in q"),
      In("cu_seqlens_k", &FlashAttnVarlenBackward::cu_seqlens_k, "b+1", "i32|i64",
         "where each sequence starts in k"),
      In("seqused_k", &FlashAttnVarlenBackward::seqused_k, "b", "i32|i64",
         "keys of each sequence, no more than cu_seqlens_k leaves it"),
      In("alibi_slopes", &FlashAttnVarlenBackward::alibi_slopes, "h | b h", "f32",
         "what a score loses for each key between the query's own and the one it meets"),
      In("sinks", &FlashAttnVarlenBackward::sinks, "h", "f32",
         "a logit of each head in the denominator, without a value"),
      In("dlse", &FlashAttnVarlenBackward::dlse, "h tq", "f32", "the gradient of lse"),
      Attr("scale", &FlashAttnVarlenBackward::scale, "of the scores; default d ** -0.5"),
      Attr("is_causal", &FlashAttnVarlenBackward::is_causal, "a query sees no later key"),
      Attr("window_left", &FlashAttnVarlenBackward::window_left,
           "keys seen before the query's own; -1: all"),
      Attr("window_right", &FlashAttnVarlenBackward::window_right,
           "keys seen after the query's own; -1: all"),
      Attr("softcap", &FlashAttnVarlenBackward::softcap,
           "softcap * tanh(score / softcap); 0: none"),
      Attr("deterministic", &FlashAttnVarlenBackward::deterministic,
           "the same bits at every run, on a GPU too"),
      Out("dq", &FlashAttnVarlenBackward::dq, "tq h d", "T", "the gradient of q"),
      Out("dk", &FlashAttnVarlenBackward::dk, "tk hk d", "T", "the gradient of k"),
      Out("dv", &FlashAttnVarlenBackward::dv, "tk hk d", "T", "the gradient of v"),
      Out("dsinks", &FlashAttnVarlenBackward::dsinks, "h", "f32", "the gradient of sinks")
          .When("sinks"),
      Workspace("workspace", &FlashAttnVarlenBackward::workspace));

  Status Check() const;
  std::array<int64_t, 2> WorkspaceDims() const;
  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;

  attention::BackwardParams ToParams() const;
};

}  // namespace intarsia
