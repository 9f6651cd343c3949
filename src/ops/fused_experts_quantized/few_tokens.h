// fused_experts_quantized of few tokens, whose pairs seldom share an expert: two kernels, no sort.
#pragma once
#include "src/core/aligned.h"
#include "src/core/context.h"
#include "src/matmul/cuda/quantized_plan.h"
#include "src/matmul/cuda/row_of_codes.h"
#include "src/ops/fused_experts/pass.h"

namespace intarsia::cuda {

// Warps of a CTA: those that share the sums of two tiles of w1, and of a tile of w2 for all experts
// of a token.
inline constexpr int kFewUpShift = 2, kFewUpWarps = 1 << kFewUpShift, kFewDownWarps = 8;
// At most one in so many reads of an expert may be a repeat (docs/notebook/weights_in_codes.md).
inline constexpr int kFewApart = 4;

// Warps that share an expert's sum, as a power of two.
inline int FewDownShift(const ExpertsPass& pass) {
  int shift = 0;
  while (pass.k << (shift + 1) <= kFewDownWarps) ++shift;
  return shift;
}
inline matmul::RowOfCodesShape FewUpShape(const matmul::QuantizedParams& first) {
  return matmul::RowOfCodesShape::Of(first, kFewUpShift);
}
inline matmul::RowOfCodesShape FewDownShape(const ExpertsPass& pass,
                                            const matmul::QuantizedParams& second) {
  return matmul::RowOfCodesShape::Of(second, FewDownShift(pass));
}

// `first` has the gating and `second` the matrices of a pass's products.
inline bool CanRunFewTokens(const ExpertsPass& pass, const matmul::QuantizedParams& first,
                            const matmul::QuantizedParams& second) {
  constexpr int64_t kMostTokens = 65535;  // of a grid's second and third axis
  if (!IsOfFewTokens(pass, kFewApart) || pass.k > kFewDownWarps || pass.tokens > kMostTokens ||
      (!first.gating.in_turn && first.tiles % 2))
    return false;
  for (const matmul::QuantizedParams& p : {first, second})
    if (!matmul::RowOfCodesShape::CanTake(p) || !IsAligned16(p.scales.data) ||
        !IsAligned16(p.zeros.data))
      return false;
  return kFewUpWarps * FewUpShape(first).bytes <= matmul::kMostSharedBytes &&
         kFewDownWarps * FewDownShape(pass, second).bytes <= matmul::kMostSharedBytes;
}

// Of f16 or bf16.
template <DType kType>
Status RunFewTokens(const ExpertsPass& pass, const matmul::QuantizedParams& first,
                    const matmul::QuantizedParams& second, const CudaContext& context);

}  // namespace intarsia::cuda
