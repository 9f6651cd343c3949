// The gradient of attention over dense K and V (attention.h has s, z and lse). With P and dS as in
//
//   p_ij = exp(s_ij - lse_i), 0 where query i does not see key j, and everywhere if lse_i = -inf
//   delta_i = sum_x dout_ix out_ix - dlse_i
//   ds_ij = p_ij (dout_i . v_j - delta_i), times 1 - tanh^2 of its argument under a softcap
//
//   dq_i = scale sum_j ds_ij k_j     dk_j = scale sum_i ds_ij q_i     dv_j = sum_i p_ij dout_i
//   dsink = - sum_i exp(sink - lse_i) delta_i
//
// where the sums over i are also over the query heads that share the KV head. Rows of q outside the
// sequences and keys that nobody sees get 0. A sequence's keys lie within its rows of k: a
// seqused_k beyond cu_seqlens_k counts as all of them.
#pragma once
#include "src/attention/attention.h"

namespace intarsia::attention {

struct BackwardParams {
  // out and lse are operands here. K and V are dense: one page whose slots are the rows of k.
  // Windows are at most kMaxCount.
  Params forward;
  const void* dout = nullptr;   // [t, h, d], dense
  const float* dlse = nullptr;  // [h, t], or null
  void* dq = nullptr;           // [t, h, d], dense
  void* dk = nullptr;           // [tk, hk, d], dense
  void* dv = nullptr;           // [tk, hk, d], dense
  float* dsinks = nullptr;      // [h], or null
  bool deterministic = false;   // on CUDA; on the CPU it always is

  INTARSIA_HOST_DEVICE int64_t query_rows() const { return forward.num_tokens * forward.num_heads; }
  INTARSIA_HOST_DEVICE int64_t group() const {
    return forward.num_heads / forward.cache.num_kv_heads;
  }
};

// What a row of q needs of the forward pass.
struct RowStats {
  float lse = 0;    // inf if no key is seen, so that exp(s - lse) is 0
  float delta = 0;  // as above
};

// What Params::workspace holds, one after the other:
//   dq before it is scaled and rounded, f32 [t, h, d]; RowStats [t, h]; counters, int32.
class BackwardWorkspace {
 public:
  INTARSIA_HOST_DEVICE explicit BackwardWorkspace(const BackwardParams& params)
      : params_(params), rows_(params.query_rows()) {}
  INTARSIA_HOST_DEVICE float* dq() const { return params_.forward.workspace; }
  INTARSIA_HOST_DEVICE RowStats* stats() const {
    return reinterpret_cast<RowStats*>(dq() + dq_floats());
  }
  INTARSIA_HOST_DEVICE int32_t* counters() const {
    return reinterpret_cast<int32_t*>(dq() + dq_floats() + kStatFloats * rows_);
  }
  // For every KV head, of the tiles of rows: no lengths make more (see backward_tile.cuh). And one.
  INTARSIA_HOST_DEVICE int64_t num_counters() const {
    const int64_t packed_rows = params_.forward.num_tokens * params_.group();
    const int64_t tiles = packed_rows / kMinTileRows + params_.forward.num_seqs + 1;
    return tiles * params_.forward.cache.num_kv_heads + 1;
  }
  INTARSIA_HOST_DEVICE int64_t floats() const {
    return dq_floats() + kStatFloats * rows_ + num_counters();
  }

  static constexpr int64_t kMinTileRows = 16;  // of any kernel

 private:
  static constexpr int64_t kStatFloats = sizeof(RowStats) / sizeof(float);
  INTARSIA_HOST_DEVICE int64_t dq_floats() const { return rows_ * params_.forward.head_dim; }

  const BackwardParams& params_;
  int64_t rows_;
};

// What the kernels ask: CheckParams, and sizes that they can count.
Status CheckBackward(const BackwardParams& params);
// Whether the workspace, which may be that of another release's program, is large enough.
Status CheckWorkspace(const BackwardParams& params);

Status RunBackward(const BackwardParams& params, const CpuContext& context);
Status RunBackward(const BackwardParams& params, const CudaContext& context);

}  // namespace intarsia::attention
