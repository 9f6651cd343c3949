// For each row of logits the top_k experts and their weights:
//   s = softmax(logits), or sigmoid(logits), or sqrt(softplus(logits)), by element;
//   ids: the top_k largest of s + bias, the largest first, a tie to the lower id;
//   weights = scale * s[ids], or scale * s[ids] / sum s[ids] with `renormalize`.
// With num_groups > 1 only the experts of topk_groups groups count: neighbors make a group, whose
// score is its largest s, or with a bias the sum of its two largest s + bias; again a tie goes to
// the lower group (DeepSeek-V3, arXiv:2412.19437, section 2.1.2). Without a bias logits are
// compared in the place of s, which grows with them, so that no rounding makes a tie. NaN is the
// lowest.
#pragma once
#include "src/core/op.h"

namespace intarsia {

struct TopkRouter {
  TensorView logits;
  Optional bias;
  int64_t top_k = 1;
  std::string_view scoring = "softmax";
  bool renormalize = false;
  int64_t num_groups = 1, topk_groups = 1;
  float scale = 1.0f;
  TensorView weights, ids;

  static constexpr auto kSpec = MakeSpec(
      "topk_router", "The experts of each token, and their weights.",
      "vLLM's topk_softmax, topk_sigmoid, topk_softplus_sqrt and grouped_topk",
      In("logits", &TopkRouter::logits, "... e", "T", "what a token says to each expert"),
      In("bias", &TopkRouter::bias, "e", "f32",
         "added to the scores where experts are chosen; weights have none of it"),
      Attr("top_k", &TopkRouter::top_k, "experts of a token"),
      Attr("scoring", &TopkRouter::scoring, "scores from logits")
          .OneOf("softmax|sigmoid|softplus_sqrt"),
      Attr("renormalize", &TopkRouter::renormalize,
           "weights of a token sum to scale, but where all of their scores are 0"),
      Attr("num_groups", &TopkRouter::num_groups, "groups of neighboring experts"),
      Attr("topk_groups", &TopkRouter::topk_groups, "groups that a token may choose from"),
      Attr("scale", &TopkRouter::scale, "what weights are multiplied by"),
      Out("weights", &TopkRouter::weights, "... top_k", "f32", "weights, the largest score first"),
      Out("ids", &TopkRouter::ids, "... top_k", "i32", "which experts these are"));

  // What kernels keep of a row: the most experts and groups that they are built for.
  static constexpr int kMostExperts = 1024, kMostGroups = 32;

  Status Check() const;
  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
