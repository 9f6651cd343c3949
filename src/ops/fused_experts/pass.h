// The steps of fused_experts for as many tokens as the workspace has room for:
//   sort      pairs (token, j) by expert, in the order of pairs: sizes[e] of each expert,
//             rows[r] the token of sorted row r, places[p] the row of pair p, or -1;
//   product   hidden[r, :] = x[rows[r], :] w1[e]^T + w1_bias[e];
//   activate  gated[r, :] = act(hidden[r, :]);
//   product   down[r, :] = gated[r, :] w2[e]^T + w2_bias[e];
//   sum       out[t, :] = sum over j of weights[t, j] down[places[t k + j], :].
// `down` lies where `hidden` was. Each platform has its own sort, activate and sum.
#pragma once
#include "src/activation/gating.h"
#include "src/matmul/grouped.h"
#include "src/ops/fused_experts/fused_experts.h"

namespace intarsia {

struct ExpertsPass {
  DType dtype = DType::kF32, weights_dtype = DType::kF32;
  int64_t tokens = 0, k = 0, n = 0, i = 0, experts = 0, mapped = 0;
  const void* x = nullptr;        // [tokens, n]
  const void* weights = nullptr;  // [tokens, k]
  const void* w1 = nullptr;
  const void* w2 = nullptr;
  const void* w1_bias = nullptr;  // or null
  const void* w2_bias = nullptr;  // or null
  IndexVector ids, expert_map;
  bool weights_on_input = false;
  int32_t* sizes = nullptr;
  int32_t* rows = nullptr;
  int32_t* places = nullptr;
  void* hidden = nullptr;  // [pairs, 2i]
  void* gated = nullptr;   // [pairs, i]
  void* down = nullptr;    // [pairs, n]
  void* out = nullptr;     // [tokens, n]

  INTARSIA_HOST_DEVICE int64_t pairs() const { return tokens * k; }
  // The expert of a pair, or -1.
  [[gnu::always_inline]] INTARSIA_HOST_DEVICE int64_t ExpertOf(int64_t pair) const {
    int64_t id = ids.At(pair);
    if (expert_map.data) id = id >= 0 && id < mapped ? expert_map.At(id) : -1;
    return id >= 0 && id < experts ? id : -1;
  }

  matmul::GroupSizes Groups() const;  // of both products
  matmul::GroupedParams FirstProduct() const;
  matmul::GroupedParams GatedProduct(const Gating& gating) const;  // with the activation
  matmul::GroupedParams SecondProduct() const;
};

// Whether a pass is one of few tokens, whose pairs seldom share an expert: then a pair alone reads
// its expert's weights, and pairs need no sort.
// At most one in `apart` reads of an expert is then a repeat, if all are drawn alike.
bool IsOfFewTokens(const ExpertsPass& pass, int64_t apart = 16);

// The sort, on the host.
void SortPairs(const ExpertsPass& pass);

// All tokens of a call, a pass for some of them after the other.
class ExpertsPasses {
 public:
  explicit ExpertsPasses(const FusedExperts& op);

  // step(pass) -> Status, for each.
  template <class Step>
  Status ForEach(Step step) const {
    INTARSIA_RETURN_IF_ERROR(Fits());
    for (int64_t first = 0; first < all_; first += at_once_)
      INTARSIA_RETURN_IF_ERROR(step(At(first)));
    return {};
  }

 private:
  ExpertsPass At(int64_t first) const;
  Status Fits() const;  // whether the workspace has room for a pass

  const FusedExperts& op_;
  int64_t all_ = 0, at_once_ = 1;  // tokens
};

}  // namespace intarsia
