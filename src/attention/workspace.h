// The workspace of attention, of the forward pass: partial results of split-KV decode, or of
// Hopper's prefill. A function of shapes.
#pragma once
#include <algorithm>

#include "src/attention/attention.h"
#include "src/attention/decode_plan.h"
#include "src/attention/prefill_line.h"

namespace intarsia::attention {

inline decode::StaticShape ShapeOf(const Params& params) {
  return {.num_tokens = params.num_tokens,
          .num_seqs = params.num_seqs,
          .num_heads = params.num_heads,
          .num_kv_heads = params.num_kv_heads(),
          .v_head_dim = params.cache.v_head_dim,
          .max_len_k = params.max_len_k};
}

// Whether no sequence can be long enough for a prefill kernel: sequences with up to this many
// packed rows (len_q * G) are short.
inline constexpr int64_t kMaxDecodeRows = 64;
inline bool OnlyShort(const Params& p) {
  if (p.num_tokens <= p.num_seqs || p.num_kv_heads() <= 0) return true;
  return p.num_tokens * (p.num_heads / p.num_kv_heads()) <= kMaxDecodeRows;
}

// Whether tasks of Hopper's prefill may be worth cutting into pieces (prefill_line.h): some
// sequence may have many more keys than there are rows to fill a GPU.
inline bool WantsPieces(const Params& p) {
  constexpr int64_t kFewKeys = 2048;
  const int64_t d = std::max(p.head_dim, p.cache.v_head_dim);
  const bool fits = p.dtype == DType::kBF16 || p.dtype == DType::kF16 ? d <= 256
                    : p.dtype == DType::kF8E4M3                       ? d <= 128
                                                                      : false;
  const bool reads = p.cache.dtype == p.dtype || (IsFp8(p.cache.dtype) && !IsFp8(p.dtype));
  return fits && reads && p.num_heads > 0 && !OnlyShort(p) && p.max_len_k >= kFewKeys &&
         (p.num_seqs > 1 || p.max_len_k >= 4 * p.num_tokens);
}

// Dims of the workspace for these shapes.
inline std::array<int64_t, 2> WorkspaceDims(const Params& p) {
  std::array<int64_t, 2> dims = decode::WorkspaceDims(ShapeOf(p));
  if (!WantsPieces(p)) return dims;
  const int64_t floats = sm90::kMaxLineCtas * sm90::PieceRoom::kPlaces *
                         sm90::LargestPiece(p.head_dim, p.cache.v_head_dim).floats();
  dims[1] = std::max(dims[1], RoundUp(CeilDiv(floats, dims[0]), int64_t{4}));
  return dims;
}

}  // namespace intarsia::attention
