// Checks the kernels of products with weights in codes against f64 on random operands, then times
// them for layers of models. Needs a GPU. Exits with 1 on a failure. Arguments: "check [cases]",
// "groups [cases]", "layers [cases]", "time [formats [least [most]]]", "whole [formats]" and
// "experts [formats [tokens]]" ask for a part: linear layers, groups of rows, layers of experts;
// times of linear layers with rows of x from least to most, of one row with norms, gates and
// residuals, and of the experts of Qwen3-30B-A3B and gpt-oss-20b. Formats are all whose names begin
// so, like int4, AWQ, Q4_0, or Q for all of GGUF.
#include "src/matmul/cuda/quantized_plan.h"
#include "tests/cuda/grouped_quantized_cases.cuh"
#include "tests/cuda/linear_quantized_on_device.cuh"
#include "tests/cuda/linear_quantized_time.cuh"
#include "tests/cuda/quantized_experts_cases.cuh"
#include "tests/cuda/quantized_experts_time.cuh"

namespace intarsia::matmul {
namespace {

using attention::Await;
using attention::ContextOn;
using attention::Require;

bool CheckCase(const QuantizedOperands& o, double& worst) {
  const QuantizedOnDevice device(o);
  const auto run = [&] {
    Require(Run(device.Params(), ContextOn()));
    Await(nullptr, o.c.Name(), 20);
    return device.Read();
  };
  const std::vector<char> out = run();
  const double error = out.empty() ? INFINITY : WorstError(o, Widened(o.c.out, out));
  if (!(error <= 1.0) || run() != out) {
    const QuantizedPlan plan = PlanFor(device.Params(), *ContextOn().device);
    std::printf("FAILED %s: error %.2f, rows %d, fine %d, warps %d x %d, splits %d\n",
                o.c.Name().c_str(), error, plan.shape.rows, plan.fine, plan.tile_warps,
                plan.k_warps, plan.splits);
    return false;
  }
  worst = std::max(worst, error);
  return true;
}

bool CheckAll(int cases) {
  std::mt19937 random(20261123);
  int failures = 0, gated = 0, normed = 0;
  double worst = 0.0;
  for (int i = 0; i < cases; ++i) {
    QuantizedCase c = RandomQuantizedCase(random);
    // Not with every plan.
    if (c.norm != DType::kOther && !CanNorm(QuantizedOnDevice({c, random}).Params(), ContextOn()))
      c.norm = DType::kOther;
    c.gated = c.gated && CanGate(QuantizedOnDevice({c, random}).Params(), ContextOn());
    gated += c.gated, normed += c.norm != DType::kOther;
    failures += !CheckCase(QuantizedOperands(c, random), worst);
  }
  std::printf("%d cases, %d gated, %d normed, %d failures, worst error %.2f of the tolerance\n",
              cases, gated, normed, failures, worst);
  return failures == 0 && (cases < 100 || (gated > 0 && normed > 0));
}

bool CheckGroups(int cases) {
  std::mt19937 random(20261124);
  int failures = 0;
  double worst = 0.0;
  for (int i = 0; i < cases; ++i)
    failures += !CheckQuantizedGroups(RandomQuantizedGroups(random, i % 2 == 0), random, worst);
  std::printf("%d products of groups, %d failures, worst error %.2f of the tolerance\n", cases,
              failures, worst);
  return failures == 0;
}

}  // namespace
}  // namespace intarsia::matmul

int main(int argc, char** argv) {
  using namespace intarsia::matmul;
  const std::string only = argc > 1 ? argv[1] : "";
  const auto argument = [&](int i, long otherwise) {
    return argc > i ? std::atol(argv[i]) : otherwise;
  };
  const auto wanted = [&](const char* name) { return only.empty() || only == name; };
  const int cases = static_cast<int>(argument(2, 400));
  if (wanted("check") && !CheckAll(cases)) return 1;
  if (wanted("groups") && !CheckGroups(cases)) return 1;
  if (wanted("layers") && !intarsia::CheckQuantizedExperts(cases)) return 1;
  const std::string_view formats = argc > 2 ? argv[2] : "";
  if (wanted("time") && !TimeQuantized(formats, argument(3, 1), argument(4, 1 << 20))) return 1;
  if (wanted("whole") && !TimeQuantized(formats, 1, 1, true)) return 1;
  if (wanted("experts")) intarsia::TimeQuantizedExperts(argc > 2 ? argv[2] : "", argument(3, 0));
  return 0;
}
