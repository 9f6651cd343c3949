// Of the heads [query, key, value] of each token, query and key heads are normed and then turned:
//   y = x / sqrt(mean(x^2) + eps) * weight over the head, query and key each with their weight;
//   out = y turned as in rotary_embedding, in f32 and rounded once.
// Value heads stay. A position outside the table turns nothing.
#pragma once
#include "src/core/op.h"

namespace intarsia {

inline constexpr int64_t kMaxNormedHeadDim = 1024;

struct FusedQkNormRope {
  TensorView positions, qkv, cos_sin_cache, q_weight, k_weight;
  std::optional<int64_t> num_heads_q, num_heads_k;
  float eps = 1e-6f;
  bool is_neox = true;
  TensorView out;

  static constexpr auto kSpec = MakeSpec(
      "fused_qk_norm_rope",
      "Root-mean-square normalization of each head of Q and K, then rotary position embedding.",
      "vLLM's _C::fused_qk_norm_rope; Qwen3",
      In("positions", &FusedQkNormRope::positions, "t", "i32|i64", "position of each token")
          .Indexes("max_pos"),
      In("qkv", &FusedQkNormRope::qkv, "t heads d", "T",
         "num_heads_q query heads, num_heads_k key heads, and value heads")
          .Takes(Access::kRows),
      In("cos_sin_cache", &FusedQkNormRope::cos_sin_cache, "max_pos r", "f32|f16|bf16",
         "cosines, then sines, of r/2 angles a position"),
      In("q_weight", &FusedQkNormRope::q_weight, "d", "T|f32", "scale of a query head's columns"),
      In("k_weight", &FusedQkNormRope::k_weight, "d", "T|f32", "scale of a key head's columns"),
      Attr("num_heads_q", &FusedQkNormRope::num_heads_q, "how many heads are queries; needed"),
      Attr("num_heads_k", &FusedQkNormRope::num_heads_k, "how many heads are keys; needed"),
      Attr("eps", &FusedQkNormRope::eps, "added to the mean square").NotNegative(),
      Attr("is_neox", &FusedQkNormRope::is_neox, "pairs (i, i + r/2); false: pairs (2i, 2i + 1)"),
      Out("qkv", &FusedQkNormRope::out, "=qkv", "T", "normed and turned query and key, and value")
          .Mutates("qkv"));

  Status Check() const;
  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;

  int64_t num_turned() const { return *num_heads_q + *num_heads_k; }
};

}  // namespace intarsia
