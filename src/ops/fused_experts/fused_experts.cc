#include "src/ops/fused_experts/fused_experts.h"

#include <algorithm>
#include <vector>

#include "src/core/aligned.h"
#include "src/core/round.h"
#include "src/ops/fused_experts/pass.h"

namespace intarsia {
namespace {

// What a workspace holds at most, if one token needs no more: it grows with tokens, but each pass
// reads all weights, so that only long prompts should take several.
constexpr int64_t kMostBytes = int64_t{1} << 30;
constexpr int64_t kAlignment = 256;
// Numbers of a row, and pairs, that are counted with 32 bits.
constexpr int64_t kMostAlone = int64_t{1} << 20;

int64_t TokensOf(const FusedExperts& op) {
  if (op.x.size() == 0) return 0;  // also of any number of tokens without elements
  return op.ids.rows();
}

// Experts that can add something: weights without elements may be of any number.
int64_t ExpertsOf(const FusedExperts& op) {
  const int64_t n = op.w2.dim(1), i = op.w2.dim(2);
  return n == 0 || (i == 0 && !op.w2_bias) ? 0 : op.w1.dim(0);
}

// The product of sizes, or more bytes than any memory has: arrays that were only described may be
// of any size.
int64_t Times(int64_t a, int64_t b) {
  constexpr int64_t kMost = int64_t{1} << 58;
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kMost : std::min(product, kMost);
}

// Where the parts of a pass's memory begin, in bytes.
struct Memory {
  int64_t sizes, rows, places, hidden, gated, end;

  Memory(const FusedExperts& op, int64_t tokens) {
    int64_t at = 0;
    const auto take = [&](int64_t bytes) {
      const int64_t begin = at;
      at += RoundUp(bytes, kAlignment);
      return begin;
    };
    const int64_t experts = ExpertsOf(op), pairs = Times(tokens, op.ids.dim(-1));
    const int64_t n = op.w2.dim(1), i = op.w2.dim(2);
    const int64_t bytes = experts == 0 ? 0 : Times(pairs, Bytes(op.x.dtype));
    sizes = take(4 * experts);
    rows = take(Times(4, pairs));
    places = take(Times(4, pairs));
    hidden = take(Times(bytes, std::max(Times(2, i), n)));
    gated = take(Times(bytes, i));
    end = at;
  }
};

// Tokens of a pass: all, or half, or a quarter ... as many as this memory has room for; at least 1.
int64_t TokensAtOnce(const FusedExperts& op, int64_t bytes) {
  int64_t tokens = std::max<int64_t>(TokensOf(op), 1);
  while (tokens > 1 && Memory(op, tokens).end > bytes) tokens = CeilDiv<int64_t>(tokens, 2);
  return tokens;
}

const void* Beyond(const TensorView& x, int64_t elements) {
  return x.as<const char>() + elements * Bytes(x.dtype);
}

}  // namespace

Status FusedExperts::Check() const {
  constexpr int64_t kMost = int64_t{1} << 30;
  const int64_t k = ids.dim(-1), e = w1.dim(0);
  if (k < kMost && (e < kMost || ExpertsOf(*this) == 0)) return {};
  return Unimplemented(Text("ids has k=", k, " and w1 e=", e, ", each is built below ", kMost));
}

std::array<int64_t, 2> FusedExperts::WorkspaceDims() const {
  if (TokensOf(*this) == 0) return {1, 0};
  return {1, Memory(*this, TokensAtOnce(*this, kMostBytes)).end / 4};
}

ExpertsPasses::ExpertsPasses(const FusedExperts& op)
    : op_(op), all_(TokensOf(op)), at_once_(TokensAtOnce(op, 4 * op.workspace.size())) {}

Status ExpertsPasses::Fits() const {
  const int64_t floats = op_.workspace.size(), needed = Memory(op_, at_once_).end / 4;
  if (all_ == 0 || floats >= needed) return {};
  return InvalidArgument(
      Text("workspace has ", floats, " numbers, expected at least ", needed, " for one token"));
}

ExpertsPass ExpertsPasses::At(int64_t first) const {
  const int64_t k = op_.ids.dim(-1), n = op_.w2.dim(1);
  const Memory memory(op_, at_once_);
  char* const workspace = op_.workspace.as<char>();
  return {.dtype = op_.x.dtype,
          .weights_dtype = op_.weights.dtype,
          .tokens = std::min(at_once_, all_ - first),
          .k = k,
          .n = n,
          .i = op_.w2.dim(2),
          .experts = ExpertsOf(op_),
          .mapped = op_.expert_map ? op_.expert_map->dim(0) : 0,
          .x = Beyond(op_.x, first * n),
          .weights = Beyond(op_.weights, first * k),
          .w1 = op_.w1.data,
          .w2 = op_.w2.data,
          .w1_bias = op_.w1_bias ? op_.w1_bias->data : nullptr,
          .w2_bias = op_.w2_bias ? op_.w2_bias->data : nullptr,
          .ids = {Beyond(op_.ids, first * k), op_.ids.dtype == DType::kI64},
          .expert_map = ToIndexVector(op_.expert_map),
          .weights_on_input = op_.apply_router_weight_on_input,
          .sizes = reinterpret_cast<int32_t*>(workspace + memory.sizes),
          .rows = reinterpret_cast<int32_t*>(workspace + memory.rows),
          .places = reinterpret_cast<int32_t*>(workspace + memory.places),
          .hidden = workspace + memory.hidden,
          .gated = workspace + memory.gated,
          .down = workspace + memory.hidden,
          .out = const_cast<void*>(Beyond(op_.out, first * n))};
}

matmul::GroupSizes ExpertsPass::Groups() const {
  return {.sizes = {sizes}, .all = experts, .count = experts, .m = pairs()};
}

matmul::GroupedParams ExpertsPass::FirstProduct() const {
  return {.dtype = dtype,
          .out_dtype = dtype,
          .x = x,
          .w = w1,
          .bias = weights_on_input ? nullptr : w1_bias,  // which comes behind the weights
          .out = hidden,
          .k = n,
          .n = 2 * i,
          .x_rows = tokens,
          .transposed = true,
          .groups = Groups(),
          .rows = {rows}};
}

matmul::GroupedParams ExpertsPass::GatedProduct(const Gating& gating) const {
  matmul::GroupedParams p = FirstProduct();
  p.gating = gating;
  p.out = gated;
  return p;
}

matmul::GroupedParams ExpertsPass::SecondProduct() const {
  return {.dtype = dtype,
          .out_dtype = dtype,
          .x = gated,
          .w = w2,
          .bias = w2_bias,
          .out = down,
          .k = i,
          .n = n,
          .x_rows = pairs(),
          .transposed = true,
          .groups = Groups()};
}

bool IsOfFewTokens(const ExpertsPass& p, int64_t apart) {
  const bool is_few = p.tokens == 1 || (p.tokens - 1) * p.k * apart <= 2 * p.experts;
  return is_few && Bytes(p.dtype) == 2 && !p.weights_on_input && p.k > 0 && p.experts > 0 &&
         p.n > 0 && p.i > 0 && p.n % 8 == 0 && p.i % 8 == 0 && p.n < kMostAlone &&
         p.i < kMostAlone && p.pairs() < kMostAlone && IsAligned16(p.x) && IsAligned16(p.w1) &&
         IsAligned16(p.w2) && IsAligned16(p.gated);
}

void SortPairs(const ExpertsPass& pass) {
  const int64_t pairs = pass.pairs();
  std::vector<int32_t> next(static_cast<size_t>(pass.experts));
  for (int64_t p = 0; p < pairs; ++p)
    if (const int64_t e = pass.ExpertOf(p); e >= 0) ++next[static_cast<size_t>(e)];
  int32_t row = 0;
  for (int64_t e = 0; e < pass.experts; ++e) {
    int32_t& first = next[static_cast<size_t>(e)];
    pass.sizes[e] = first;
    row += first;
    first = row - first;
  }
  for (int64_t p = 0; p < pairs; ++p) {
    const int64_t e = pass.ExpertOf(p);
    pass.places[p] = e < 0 ? -1 : next[static_cast<size_t>(e)]++;
    if (e >= 0) pass.rows[pass.places[p]] = static_cast<int32_t>(p / pass.k);
  }
}

}  // namespace intarsia
