// What the launches of the forward pass's two kernels, decode.h and prefill.h, have in common.
#pragma once
#include "src/attention/params.h"
#include "src/core/dispatch.h"

namespace intarsia::attention {

// Which rows a prefill kernel of any architecture computes.
struct PrefillRows {
  // Only sequences with len_q * G >= min_packed_rows, where G = h / hk; the others are left alone.
  int64_t min_packed_rows = 1;
  // Whether to write the rows outside of all sequences, too: out = 0, lse = -inf.
  bool fill_padding = true;
};

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
