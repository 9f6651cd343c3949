// Checks the kernels of products with weights in codes against f64 on random operands, then times
// them for layers of models. Needs a GPU. Exits with 1 on a failure. Arguments: "check [cases]",
// "groups [cases]", "layers [cases]", "time [formats [least [most]]]" and "experts [formats
// [tokens]]" ask for a part: linear layers, groups of rows, layers of experts; times of linear
// layers with rows of x from least to most, and of the experts of Qwen3-30B-A3B and gpt-oss-20b.
#include "src/matmul/cuda/quantized_plan.h"
#include "tests/cuda/attention_batch.cuh"
#include "tests/cuda/grouped_quantized_cases.cuh"
#include "tests/cuda/linear_quantized_cases.h"
#include "tests/cuda/linear_quantized_time.cuh"
#include "tests/cuda/quantized_experts_cases.cuh"
#include "tests/cuda/quantized_experts_time.cuh"

namespace intarsia::matmul {
namespace {

using attention::Await;
using attention::ContextOn;
using attention::DeviceArray;
using attention::Require;

// The operands on the device, and the results with guards before and behind them.
class OnDevice {
 public:
  explicit OnDevice(const QuantizedOperands& o)
      : o_(o),
        x_(o.x.bits()),
        packed_(o.packed),
        scales_(o.scales.bits()),
        zeros_(o.zeros.bits()),
        outer_scales_(o.outer_scales.bits()),
        outer_zeros_(o.outer_zeros.bits()),
        bias_(o.bias.bits()),
        out_(Size() + 2 * kGuard) {
    out_.Poison();
  }

  QuantizedParams Params() const {
    const QuantizedCase& c = o_.c;
    QuantizedParams p;
    p.dtype = c.dtype, p.out_dtype = c.out, p.format = c.format;
    p.x = x_.data() + c.shift * Bytes(c.dtype);
    p.m = c.m, p.k = c.k, p.tiles = c.c;
    p.packed = reinterpret_cast<const uint8_t*>(packed_.data());
    p.group = c.group, p.groups = c.groups();
    p.scales = Of(scales_, c.scale, outer_scales_, o_.outer_scales);
    if (!o_.zeros.empty()) p.zeros = Of(zeros_, c.zero, outer_zeros_, o_.outer_zeros);
    p.points = c.points;
    if (c.bias) p.bias = bias_.data();
    p.out = out_.data() + kGuard;
    return p;
  }

  // Empty if something is written outside of the results.
  std::vector<char> Read() const {
    const std::vector<char> all = out_.ToHost();
    for (size_t i = 0; i < kGuard; ++i)
      if (all[i] != char(0xff) || all[all.size() - 1 - i] != char(0xff)) return {};
    return {all.begin() + kGuard, all.end() - kGuard};
  }

 private:
  static constexpr size_t kGuard = 256;
  size_t Size() const { return o_.c.m * o_.c.c * kTileRows * Bytes(o_.c.out); }
  Factors Of(const DeviceArray<char>& inner, DType dtype, const DeviceArray<char>& outer,
             const FactorArray& on_host) const {
    Factors factors{.data = inner.data(), .dtype = dtype};
    if (on_host.empty()) return factors;
    factors.outer = outer.data();
    factors.outer_dtype = o_.c.outer;
    factors.outers = o_.c.outers;
    return factors;
  }

  const QuantizedOperands& o_;
  DeviceArray<char> x_, packed_, scales_, zeros_, outer_scales_, outer_zeros_, bias_, out_;
};

std::vector<float> Widened(DType dtype, const std::vector<char>& bits) {
  const attention::Elements elements(dtype, bits);
  return {elements.values(), elements.values() + bits.size() / Bytes(dtype)};
}

bool CheckCase(const QuantizedOperands& o, double& worst) {
  const OnDevice device(o);
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
  int failures = 0;
  double worst = 0.0;
  for (int i = 0; i < cases; ++i)
    failures += !CheckCase(QuantizedOperands(RandomQuantizedCase(random), random), worst);
  std::printf("%d cases, %d failures, worst error %.2f of the tolerance\n", cases, failures, worst);
  return failures == 0;
}

bool CheckGroups(int cases) {
  std::mt19937 random(20261124);
  int failures = 0;
  double worst = 0.0;
  for (int i = 0; i < cases; ++i) failures += !CheckQuantizedGroups(random, worst);
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
  if (wanted("time"))
    TimeQuantized(static_cast<int>(argument(2, std::size(kTimedFormats))), argument(3, 1),
                  argument(4, 1 << 20));
  if (wanted("experts")) intarsia::TimeQuantizedExperts(argc > 2 ? argv[2] : "", argument(3, 0));
  return 0;
}
