// Each pair (x1, x2) of a head is turned by the angle of its token's position:
//   y1 = x1 cos - x2 sin,  y2 = x2 cos + x1 sin,  cos = table[position, i], sin = table[position,
//   r/2 + i]
// A token has one position, or several, of which pair i takes number pair_axes[i] (M-RoPE).
// Pairs are (i, i + r/2) in the neox form and (2i, 2i + 1) in the gptj form, counted from
// rope_dim_offset. The rest of the head is copied. A position outside the table turns nothing.
#pragma once
#include "src/core/op.h"

namespace intarsia {

inline constexpr int64_t kMaxRotaryDim = 1024;

struct RotaryEmbedding {
  TensorView positions, query, cos_sin_cache;
  Optional key, pair_axes;
  std::optional<int64_t> head_size;
  bool is_neox = true;
  int64_t rope_dim_offset = 0;
  bool inverse = false;
  TensorView query_out, key_out;

  static constexpr auto kSpec = MakeSpec(
      "rotary_embedding", "Rotary position embedding of query and key.",
      "Su et al. 2021, arXiv:2104.09864; vLLM's _C::rotary_embedding",
      In("positions", &RotaryEmbedding::positions, "pair_axes: ... axes | !pair_axes: ...",
         "i32|i64", "position of each token, or several")
          .Indexes("max_pos"),
      In("query", &RotaryEmbedding::query, "... h d | head_size: ... h*head_size", "T",
         "query heads")
          .Takes(Access::kEvenLeading),
      In("cos_sin_cache", &RotaryEmbedding::cos_sin_cache, "max_pos r", "f32|f16|bf16",
         "cosines, then sines, of r/2 angles a position"),
      In("key", &RotaryEmbedding::key, "... hk d | head_size: ... hk*head_size", "T", "key heads")
          .Takes(Access::kEvenLeading),
      In("pair_axes", &RotaryEmbedding::pair_axes, "pairs", "i32|i64",
         "which of a token's positions each of the r/2 pairs takes (M-RoPE)")
          .Indexes("axes"),
      Attr("head_size", &RotaryEmbedding::head_size,
           "d, needed where heads are not an axis of their own"),
      Attr("is_neox", &RotaryEmbedding::is_neox, "pairs (i, i + r/2); false: pairs (2i, 2i + 1)"),
      Attr("rope_dim_offset", &RotaryEmbedding::rope_dim_offset,
           "dimensions of a head before the first pair"),
      Attr("inverse", &RotaryEmbedding::inverse, "turn back"),
      Out("query", &RotaryEmbedding::query_out, "=query", "T", "turned query").Mutates("query"),
      Out("key", &RotaryEmbedding::key_out, "=key", "T", "turned key").Mutates("key").When("key"));

  Status Check() const;
  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;

  // Query and key are [tokens, heads, head_dim] whichever way their axes are written.
  int64_t head_dim() const { return query.rank == token_axes() + 2 ? query.dim(-1) : *head_size; }
  int token_axes() const { return positions.rank - (pair_axes ? 1 : 0); }
  int64_t tokens() const {
    int64_t product = 1;
    for (int axis = 0; axis < token_axes(); ++axis) product *= positions.dim(axis);
    return product;
  }
  // Of a token.
  int64_t num_positions() const { return pair_axes ? positions.dim(-1) : 1; }
  // Of them, in elements; torch gives parts of a product of Q, K and V. All axes of tokens together
  // have one stride.
  struct Strides {
    int64_t token, head;
  };
  Strides StridesOf(const TensorView& heads) const {
    const bool flat = heads.rank == token_axes() + 1;
    return {EvenStride(heads, token_axes()).value_or(0), flat ? head_dim() : heads.stride(-2)};
  }
};

}  // namespace intarsia
