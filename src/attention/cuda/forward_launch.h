// What the launches of the forward pass's kernels, sm80/decode.h and {sm80,sm90}/prefill.h, have in
// common.
#pragma once
#include <algorithm>
#include <initializer_list>

#include "src/attention/params.h"
#include "src/core/dispatch.h"

namespace intarsia::attention {

// How a prefill kernel and the decode kernel share a mixed batch on the device, where its lengths
// are known: the prefill kernel takes short sequences, too, if their keys are few beside the work
// of each of its CTAs (TakenKeys in ragged.cuh).
struct Sharing {
  int ctas = 0;  // of the prefill kernel; 0: it takes no short sequences
  int group = 1, num_kv_heads = 1;
};

// Which rows a prefill kernel of any architecture computes.
struct PrefillRows {
  // Only sequences with len_q * G >= min_packed_rows, where G = h / hk; the others are left alone.
  int64_t min_packed_rows = 1;
  // Whether to write the rows outside of all sequences, too: out = 0, lse = -inf.
  bool fill_padding = true;
  // sm_90 alone.
  Sharing sharing = {};
};

// Whether every row of q, K, V and out begins at a multiple of 16 bytes, and K's and V's are whole
// multiples of 16 bytes.
inline bool RowsAligned(const Params& p) {
  const auto aligned = [](DType dtype, const void* data, std::initializer_list<int64_t> strides) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 &&
           std::ranges::all_of(strides,
                               [&](int64_t stride) { return stride * Bytes(dtype) % 16 == 0; });
  };
  const CacheView& c = p.cache;
  const auto cache_aligned = [&](const void* data, const CacheStrides& s, int64_t d) {
    return aligned(c.dtype, data, {s.page, s.slot, s.head, s.layer, d});
  };
  return aligned(p.dtype, p.q, {p.q_token_stride, p.q_head_stride}) &&
         aligned(p.out_dtype, p.out, {c.v_head_dim}) &&
         cache_aligned(c.k, c.k_strides, p.head_dim) &&
         cache_aligned(c.v, c.v_strides, c.v_head_dim);
}

// launch.operator()<kKeyType>(params) by the type of K and V, which q has, too, unless it is fp8,
// or q is f32; nothing if there is nothing to compute.
template <class Launch>
Status LaunchByKeyType(const Params& params, Launch launch) {
  if (params.num_tokens == 0 || params.num_heads == 0) return {};
  Params p = params;
  INTARSIA_RETURN_IF_ERROR(FitCounts(p));
  const DType type = p.dtype == kF32 ? kF32 : p.cache.dtype;
  return DispatchDType<kF32, kF16, kBF16, kF8E4M3, kF8E5M2>(
      "K and V", type, [&]<DType kKeyType>() { return launch.template operator()<kKeyType>(p); });
}

}  // namespace intarsia::attention
