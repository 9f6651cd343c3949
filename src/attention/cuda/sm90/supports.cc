#include "src/attention/cuda/sm90/prefill.h"
#include "src/attention/cuda/sm90/tiles.h"
#include "src/attention/prefill_line.h"

namespace intarsia::attention::sm90 {

// The copy engine reads elements as they lie, which wgmma multiplies: 16-bit ones, or q, K and V in
// e4m3 with head dims for which tiles and f32 sums fit into shared memory. Beside q of 16 bits K
// and V in fp8 are widened. It reads from rows that begin at multiples of 16 bytes; a lane copies a
// box of a page, so that small pages would make too many of them. Chunks of keys would make the
// softmax warps spill registers.
bool Supports(const Params& p) {
  constexpr int64_t kStrideEnd = (int64_t{1} << 40) / 2;  // of a tensor map, in elements
  const CacheView& c = p.cache;
  const auto fits = [](int64_t size, int64_t stride) {
    return size == 1 || (stride > 0 && stride < kStrideEnd);
  };
  const auto strides_fit = [&](const CacheStrides& s) {
    return fits(c.num_layers, s.layer) && fits(c.num_pages, s.page) && fits(c.page_size, s.slot) &&
           fits(c.num_kv_heads, s.head);
  };
  const auto is_16_bit = [](DType dtype) { return dtype == kBF16 || dtype == kF16; };
  const bool e4m3 = p.dtype == kF8E4M3 && is_16_bit(p.out_dtype);
  const int64_t largest = e4m3 ? 128 : 256;
  const bool widens = is_16_bit(p.dtype) && IsFp8(c.dtype);
  return (e4m3 || (is_16_bit(p.dtype) && p.out_dtype == p.dtype)) &&
         (c.dtype == p.dtype || widens) && p.attention_chunk == 0 && p.head_dim <= largest &&
         c.v_head_dim <= largest && p.num_heads / p.num_kv_heads() <= 128 &&
         p.num_tokens * p.num_heads + p.num_seqs * p.num_heads < kMaxCount &&  // tasks
         c.num_layers > 0 && c.num_pages > 0 && c.page_size > 0 &&
         (!p.paged || c.page_size % kMinBoxRows == 0) && RowsAligned(p) &&
         fits(p.num_tokens, p.q_token_stride) && fits(p.num_heads, p.q_head_stride) &&
         strides_fit(c.k_strides) && strides_fit(c.v_strides);
}

bool HasRoomForPieces(const Params& p, int64_t ctas) {
  const int64_t floats =
      ctas * PieceRoom::kPlaces * LargestPiece(p.head_dim, p.cache.v_head_dim).floats();
  return p.workspace && reinterpret_cast<uintptr_t>(p.workspace) % 16 == 0 &&
         p.max_splits * p.workspace_floats >= floats;
}

}  // namespace intarsia::attention::sm90
