// The steps of fused_experts on a GPU around products of another kind.
#pragma once
#include <functional>

#include "src/core/context.h"
#include "src/ops/fused_experts/pass.h"

namespace intarsia::cuda {

// Enqueues something of a pass. The kernels may begin while the one before them ends.
using ExpertsStep = std::function<Status(const ExpertsPass&)>;

// `first`: hidden from x, or gated, as first_gates(pass) says; `second`: down from gated.
// `few_tokens`: all of a pass that takes_few_tokens(pass) accepts, whose pairs are not sorted.
struct ExpertsSteps {
  ExpertsStep first, second, few_tokens;
  std::function<bool(const ExpertsPass&)> first_gates, takes_few_tokens;
};
Status RunExperts(const FusedExperts& op, const CudaContext& context, const ExpertsSteps& steps);

}  // namespace intarsia::cuda
