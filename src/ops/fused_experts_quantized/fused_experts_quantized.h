// The experts of a mixture with weights in 8 bits or less: fused_experts, whose file has the
// mathematics, with the matrices that codes stand for (src/matmul/quantized.h). c tiles of 16 rows
// make the 2i columns of gate and up, u tiles the n columns of the results.
#pragma once
#include "src/matmul/weight_operands.h"
#include "src/ops/fused_experts/pass.h"

namespace intarsia {

struct FusedExpertsQuantized {
  TensorView x, w1, w1_scales, w2, w2_scales, weights, ids;
  Optional w1_zeros, w2_zeros, w1_bias, w2_bias, expert_map;
  Optional w1_outer_scales, w1_outer_zeros, w2_outer_scales, w2_outer_zeros;
  std::string_view format = "u4", w2_format = "same";
  int64_t w1_group = 0, w2_group = 0;
  std::string_view zeros_are = "points";
  std::string_view activation = "silu";
  float limit = 7.0f, alpha = 1.702f;
  bool apply_router_weight_on_input = false;
  TensorView out, workspace;

  static constexpr auto kSpec = MakeSpec(
      "fused_experts_quantized",
      "The gated MLPs of each token's experts, with weights in 8 bits or less.",
      "fused_experts of dequantized weights; ggml's, gpt-oss's and vLLM's formats",
      In("x", &FusedExpertsQuantized::x, "... 16*u", "T", "tokens"),
      In("w1", &FusedExpertsQuantized::w1, INTARSIA_PACKED_DIMS("e c nb"), "u8",
         "codes of gate and up of each expert, as in linear_quantized"),
      In("w1_scales", &FusedExpertsQuantized::w1_scales, "e c ng 16",
         "f32|f16|bf16|u8|i8|f8e4m3fn|f8e8m0fnu", "what codes of w1 are multiplied by"),
      In("w2", &FusedExpertsQuantized::w2,
         INTARSIA_PACKED_DIMS_IF("w2_format=same: format=", "e u ib") " | " INTARSIA_PACKED_DIMS_IF(
             "w2_format=", "e u ib"),
         "u8", "codes of the way back of each expert, of 8*c columns"),
      In("w2_scales", &FusedExpertsQuantized::w2_scales, "e u ig 16",
         "f32|f16|bf16|u8|i8|f8e4m3fn|f8e8m0fnu", "what codes of w2 are multiplied by"),
      In("weights", &FusedExpertsQuantized::weights, "... k", "f32|T", "of each token's experts"),
      In("ids", &FusedExpertsQuantized::ids, "... k", "i32|i64",
         "which experts these are; one that is not there adds nothing"),
      In("w1_zeros", &FusedExpertsQuantized::w1_zeros, "e c ng 16", "f32|f16|bf16|u8|i8",
         "what is subtracted from codes of w1, or added to their products with scales"),
      In("w2_zeros", &FusedExpertsQuantized::w2_zeros, "e u ig 16", "f32|f16|bf16|u8|i8",
         "the same of w2"),
      In("w1_bias", &FusedExpertsQuantized::w1_bias, "e 16*c", "T", "added to the first product"),
      In("w2_bias", &FusedExpertsQuantized::w2_bias, "e 16*u", "T", "added to the second product"),
      In("expert_map", &FusedExpertsQuantized::expert_map, "g", "i32|i64",
         "the expert of each id, negative where it is elsewhere; default: the id itself"),
      In("w1_outer_scales", &FusedExpertsQuantized::w1_outer_scales, "e | e c no 16",
         "f32|f16|bf16", "what scales of w1 are multiplied by"),
      In("w1_outer_zeros", &FusedExpertsQuantized::w1_outer_zeros, "e | e c no 16", "f32|f16|bf16",
         "what minimums of w1 are multiplied by"),
      In("w2_outer_scales", &FusedExpertsQuantized::w2_outer_scales, "e | e u io 16",
         "f32|f16|bf16", "what scales of w2 are multiplied by"),
      In("w2_outer_zeros", &FusedExpertsQuantized::w2_outer_zeros, "e | e u io 16", "f32|f16|bf16",
         "what minimums of w2 are multiplied by"),
      Attr("format", &FusedExpertsQuantized::format, "what a code stands for")
          .OneOf(matmul::kFormatNames),
      Attr("w1_group", &FusedExpertsQuantized::w1_group,
           "columns of w1 that share a scale: 16 or a multiple of 32; 0: all of them"),
      Attr("w2_group", &FusedExpertsQuantized::w2_group, "the same of w2"),
      Attr("zeros_are", &FusedExpertsQuantized::zeros_are,
           "points are subtracted from codes, minimums added to their products with scales")
          .OneOf("points|minimums"),
      Attr("activation", &FusedExpertsQuantized::activation,
           "gate and up side by side; swigluoai: in turn, as gpt-oss has them")
          .OneOf("silu|gelu_tanh|swigluoai"),
      Attr("limit", &FusedExpertsQuantized::limit,
           "swigluoai: the most that a gate counts as, and the most size of up"),
      Attr("alpha", &FusedExpertsQuantized::alpha,
           "swigluoai: what its logistic curve is steeper by"),
      Attr("apply_router_weight_on_input", &FusedExpertsQuantized::apply_router_weight_on_input,
           "weights multiply the first product, before its bias, not the results"),
      Attr("w2_format", &FusedExpertsQuantized::w2_format,
           "what a code of w2 stands for; same: as format says")
          .OneOf("same|" INTARSIA_FORMAT_NAMES),
      Out("out", &FusedExpertsQuantized::out, "... 16*u", "T", "the weighted sums"),
      Workspace("workspace", &FusedExpertsQuantized::workspace));

  Status Check() const;
  std::array<int64_t, 2> WorkspaceDims() const;
  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;

  matmul::WeightOperands FirstWeight() const;
  matmul::WeightOperands SecondWeight() const;
  // The same call with plain matrices, whose sizes say how many tokens and experts there are and
  // how memory is laid out. Their data are codes.
  FusedExperts Plain() const;
  matmul::QuantizedGroupsParams FirstProduct(const ExpertsPass& pass) const;
  matmul::QuantizedGroupsParams GatedProduct(const ExpertsPass& pass) const;  // with the activation
  matmul::QuantizedGroupsParams SecondProduct(const ExpertsPass& pass) const;
};

}  // namespace intarsia
