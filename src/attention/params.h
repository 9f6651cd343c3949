// From operands to attention::Params, for the ops that end in attention.
#pragma once
#include <optional>

#include "src/attention/attention.h"

namespace intarsia::attention {

// Queries, results and what is done to scores. `lse` is empty if it is not wanted.
void SetQuery(Params& params, const TensorView& q, const TensorView& cu_seqlens_q,
              const TensorView& out, const TensorView& lse, std::optional<float> scale,
              float softcap);

// How a paged cache is to be read.
struct CacheFormat {
  std::string_view layout, kv_cache_dtype;
};

// K and V in a paged cache. The message completes "<op>: ".
Status SetPagedCache(Params& params, const CacheFormat& format, const TensorView& key_cache,
                     const Optional& value_cache, const Optional& layer,
                     const TensorView& block_table, const TensorView& seqused_k);

// K and V as dense arrays: one page without end.
void SetDenseCache(Params& params, const TensorView& k, const TensorView& v,
                   const TensorView& cu_seqlens_k, const Optional& seqused_k);

// Behind the three above: what q, K and V, all fp8, are to be multiplied by.
Status SetScales(Params& params, const Optional& q_scale, const Optional& k_scale,
                 const Optional& v_scale);

void SetWorkspace(Params& params, const TensorView& workspace);

// Heads of at most as many numbers. CUDA's kernels and the gradient are built for the second;
// the CPU's forward pass takes tiles of any width.
inline constexpr int64_t kMaxHeadDim = 512, kMaxTiledHeadDim = 256;

// What the kernels ask: h % hk == 0, dtypes that go together, d a multiple of 8 up to kMaxHeadDim
// and V's head dim the same (or 192 and 128), softcap and windows that mean something.
Status CheckParams(std::string_view query, const Params& params);

// What the CUDA kernels ask beyond that, since they count in 32 bits; narrows windows so that a
// position plus a window fits, and sets what is computed from sizes.
Status FitCounts(Params& params);

}  // namespace intarsia::attention
