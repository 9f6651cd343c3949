// A query row in, a result row out: the only places that know the dtypes of q and out. For *_cpu.cc
// files only.
#pragma once
#include <cmath>
#include <limits>

#include "src/attention/cpu/forward.h"
#include "src/core/cpu/simd_8bit.h"

namespace intarsia::attention {
namespace {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Row r of a sequence and KV head, as forward.h numbers them.
struct RowPlace {
  int64_t token, query_head;
};
[[gnu::always_inline]] inline RowPlace PlaceOf(const CpuWork& work, const CpuSequence& sequence,
                                               int64_t head, int64_t row) {
  return {sequence.tokens.begin + row / work.group, head * work.group + row % work.group};
}

// fn(n, x, lanes) for the elements [n, n + lanes) of a query, as f32 and times all that scores are
// scaled by.
template <class Fn>
void LoadQuery(const CpuWork& work, const CpuSequence& sequence, int64_t head, int64_t row, Fn fn) {
  const Params& params = work.params;
  const RowPlace place = PlaceOf(work, sequence, head, row);
  const int64_t offset =
      place.token * params.q_token_stride + place.query_head * params.q_head_stride;
  const float scale = params.scale * params.q_scale.At(sequence.index, head) *
                      params.k_scale.At(sequence.index, head);
  const auto load = [&]<class T>(const T* q) {
    ForLanes(params.head_dim,
             [&](int64_t n, int lanes) { fn(n, LoadN(q + offset + n, lanes) * scale, lanes); });
  };
  if (params.dtype == DType::kF32) load(static_cast<const float*>(params.q));
  if (params.dtype == DType::kF16) load(static_cast<const F16*>(params.q));
  if (params.dtype == DType::kBF16) load(static_cast<const BF16*>(params.q));
  if (params.dtype == DType::kF8E4M3) load(static_cast<const F8E4M3*>(params.q));
  if (params.dtype == DType::kF8E5M2) load(static_cast<const F8E5M2*>(params.q));
}

// A row's softmax over all of its keys: out = sum_j e^(s_j - max) v_j, sum = sum_j e^(s_j - max).
struct RowSums {
  const float* out;
  float max, sum;
};

// Completes a row: the sink joins the denominator here, once however the keys were split.
void StoreRow(const CpuWork& work, const CpuSequence& sequence, int64_t head, int64_t row,
              RowSums sums) {
  const Params& params = work.params;
  const int64_t dv = params.cache.v_head_dim;
  const RowPlace place = PlaceOf(work, sequence, head, row);
  float max = sums.max, sum = sums.sum, decay = 1;
  if (params.sinks) {
    const float sink = params.sinks[place.query_head];
    max = std::max(sums.max, sink);
    const float shift = max == -kInfinity ? 0 : max;  // -inf - -inf is NaN
    decay = std::exp(sums.max - shift);
    sum = decay * sums.sum + std::exp(sink - shift);
  }
  const float factor = sum == 0 ? 0 : decay / sum * params.v_scale.At(sequence.index, head);
  const int64_t offset = (place.token * params.num_heads + place.query_head) * dv;
  const auto store = [&]<class T>(T* out) {
    ForLanes(dv, [&](int64_t n, int lanes) {
      StoreN(out + offset + n, Load(sums.out + n) * factor, lanes);
    });
  };
  if (params.out_dtype == DType::kF32) store(static_cast<float*>(params.out));
  if (params.out_dtype == DType::kF16) store(static_cast<F16*>(params.out));
  if (params.out_dtype == DType::kBF16) store(static_cast<BF16*>(params.out));
  if (params.lse)
    params.lse[place.query_head * params.num_tokens + place.token] =
        sum == 0 ? -kInfinity : max + std::log(sum);
}

}  // namespace
}  // namespace intarsia::attention
