// The experts of a mixture, for each token those that it was routed to:
//   out[t, :] = sum over j of weights[t, j] (round_T(act(round_T(x[t, :] w1[e]^T + w1_bias[e])))
//                                            w2[e]^T + w2_bias[e]),   e the expert of ids[t, j],
// where `act` makes i numbers of the 2i of gate and up: silu(gate) up and gelu_tanh(gate) up, gate
// in the first i columns and silu(gate) rounded to T, and that of swigluoai_and_mul, gate and up in
// turn. Each term is rounded to T before it is weighted; the sum over j is f32, from the first on,
// rounded once. With apply_router_weight_on_input the first product is weighted instead, behind its
// rounding and before the bias, in f32: weights[t, j] round_T(x[t, :] w1[e]^T) + w1_bias[e].
//
// The expert of an id is the id itself, or expert_map[id]. One that is none of [0, e) adds nothing,
// and so does an id outside of the map.
//
// Pairs of a token and an expert are sorted by expert; then it is two grouped products
// (src/matmul/grouped.h) and what lies between and behind them. pass.h has the steps.
#pragma once
#include <array>

#include "src/core/op.h"

namespace intarsia {

struct FusedExperts {
  TensorView x, w1, w2, weights, ids;
  Optional w1_bias, w2_bias, expert_map;
  std::string_view activation = "silu";
  float limit = 7.0f, alpha = 1.702f;
  bool apply_router_weight_on_input = false;
  TensorView out, workspace;

  static constexpr auto kSpec = MakeSpec(
      "fused_experts", "The gated MLPs of each token's experts, weighted and summed.",
      "Shazeer et al. 2017, arXiv:1701.06538; vLLM's fused_experts",
      In("x", &FusedExperts::x, "... n", "T", "tokens"),
      In("w1", &FusedExperts::w1, "e 2*i n", "T",
         "gate and up of each expert, a row for each result, as checkpoints have it"),
      In("w2", &FusedExperts::w2, "e n i", "T", "the way back of each expert, in the same order"),
      In("weights", &FusedExperts::weights, "... k", "f32|T", "of each token's experts"),
      In("ids", &FusedExperts::ids, "... k", "i32|i64",
         "which experts these are; one that is not there adds nothing"),
      In("w1_bias", &FusedExperts::w1_bias, "e 2*i", "T", "added to the first product"),
      In("w2_bias", &FusedExperts::w2_bias, "e n", "T", "added to the second product"),
      In("expert_map", &FusedExperts::expert_map, "g", "i32|i64",
         "the expert of each id, negative where it is elsewhere; default: the id itself"),
      Attr("activation", &FusedExperts::activation,
           "gate and up side by side; swigluoai: in turn, as gpt-oss has them")
          .OneOf("silu|gelu_tanh|swigluoai"),
      Attr("limit", &FusedExperts::limit,
           "swigluoai: the most that a gate counts as, and the most size of up"),
      Attr("alpha", &FusedExperts::alpha, "swigluoai: what its logistic curve is steeper by"),
      Attr("apply_router_weight_on_input", &FusedExperts::apply_router_weight_on_input,
           "weights multiply the first product, before its bias, not the results"),
      Out("out", &FusedExperts::out, "... n", "T", "the weighted sums"),
      Workspace("workspace", &FusedExperts::workspace));

  Status Check() const;
  std::array<int64_t, 2> WorkspaceDims() const;
  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

}  // namespace intarsia
