// Plain calls of decode: paged, with 32-bit indices, 16-bit aligned q and a group in one tile, and
// without windows to the left, chunks, softcap, ALiBi, sinks, leftpad and lse. A kernel that knows
// so has little more than half of the instructions. With few sequences each runs once or twice, and
// latencies of instructions and of fetching them are most of a call's time
// (docs/notebook/decode.md, "Short calls").
//
// Each condition of IsPlain is a promise that kernels rely on: CallOf's, S::kPlain's in decode.cuh
// and decode_query.cuh, and all of decode_cluster.cuh.
#pragma once
#include "src/attention/cuda/sm80/decode_schedule.cuh"

namespace intarsia::attention::decode {

// TileConfig's kernel for plain calls.
template <class S>
struct PlainConfig : S {
  static constexpr bool kPlain = true;
};

// `shape`: the call's, before heads are split.
inline bool IsPlain(const Params& p, const DecodeRows& which, const StaticShape& shape) {
  const bool narrow =
      !p.cu_seqlens_q.wide && !p.seqused_k.wide && !p.num_seqs_device.wide && !p.page_table.wide;
  return p.paged && p.seqused_k.data && RowsAligned(p) && Bytes(p.dtype) == 2 && narrow &&
         which.sharing.ctas == 0 && !p.leftpad_k.data &&
         SplitHeads(shape).num_kv_heads == shape.num_kv_heads && p.window_left < 0 &&
         p.attention_chunk == 0 && p.softcap == 0.0f && !p.alibi_slopes.data && !p.sinks && !p.lse;
}

// A plain call as the compiler is to see it; the others as they are.
template <class S>
class CallOf {
 public:
  __device__ __forceinline__ explicit CallOf(const Params& call) : call_(call) {
    if constexpr (S::kPlain) {
      plain_ = call;
      plain_.paged = true;
      plain_.cu_seqlens_q.wide = plain_.seqused_k.wide = plain_.num_seqs_device.wide =
          plain_.page_table.wide = false;
      plain_.leftpad_k = plain_.cu_seqlens_k = {};
      plain_.window_left = -1;
      plain_.attention_chunk = 0;
      plain_.softcap = 0.0f;
      plain_.alibi_slopes = {};
      plain_.sinks = nullptr;
      plain_.lse = nullptr;
    }
  }
  __device__ __forceinline__ const Params& params() const { return S::kPlain ? plain_ : call_; }

 private:
  const Params& call_;
  Params plain_;
};

}  // namespace intarsia::attention::decode
