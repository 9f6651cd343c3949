// Checks fused_experts against f64 on random layers and hostile ids, then times it for layers of
// models. Needs a GPU. Exits with 1 on a failure. Arguments: "check [cases]" or "time [tokens
// [model]]" ask for one half of it; "router" times topk_router alone.
#include <functional>

#include "src/ops/fused_experts/pass.h"
#include "tests/cuda/attention_time.cuh"

namespace intarsia {
namespace {

using attention::Await;
using attention::ContextOn;
using attention::DeviceArray;
using attention::Elements;
using attention::Require;

struct Case {
  DType dtype, weights_dtype;
  int64_t t, n, i, e, k, mapped;  // mapped < 0: without a map
  std::string_view activation;
  bool biases, on_input, wide;

  std::string Name() const {
    return Text(intarsia::Name(dtype), " t ", t, " n ", n, " i ", i, " e ", e, " k ", k, " map ",
                mapped, " ", activation, biases ? " biases" : "", on_input ? " on input" : "",
                wide ? " wide" : "");
  }
};

Case RandomCase(DType dtype, std::mt19937& random) {
  const auto pick = [&](std::initializer_list<int64_t> values) {
    return values.begin()[random() % values.size()];
  };
  Case c{.dtype = dtype, .weights_dtype = random() % 2 ? dtype : kF32};
  c.t = pick({0, 1, 2, 7, 33, 200});
  c.n = pick({8, 64, 200, 256, 33, 1});
  c.i = pick({8, 40, 64, 136, 256, 17, 1, 0});
  c.e = pick({1, 2, 8, 33, 128, 0});
  c.k = pick({1, 2, 4, 8, 10, 17, 0});
  c.mapped = random() % 3 ? -1 : pick({0, 1, 8, 60});
  c.activation = std::array{"silu", "gelu_tanh", "swigluoai"}[random() % 3];
  c.biases = random() % 2;
  c.on_input = random() % 4 == 0;
  c.wide = random() % 2;
  return c;
}

Elements RandomElements(DType dtype, int64_t size, double scale, uint64_t seed) {
  Elements x(dtype, static_cast<size_t>(size));
  attention::Normal normal(seed);
  for (int64_t i = 0; i < size; ++i) x.Set(static_cast<size_t>(i), scale * normal());
  return x;
}

std::vector<int64_t> RandomIndices(int64_t size, int64_t below, bool wide, std::mt19937& random) {
  const int64_t far = wide ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int>::max();
  std::vector<int64_t> indices(size);
  const int64_t one = below ? static_cast<int64_t>(random() % below) : 0;
  const bool same = random() % 4 == 0;
  for (int64_t& index : indices) {
    index = same ? one : static_cast<int64_t>(random() % (below + 1));
    if (random() % 16 == 0) index = std::array<int64_t, 4>{-1, -far - 1, far, below}[random() % 4];
  }
  return indices;
}

TensorView View(const void* data, DType dtype, std::vector<int64_t> dims) {
  TensorView view;
  Require(MakeDense(const_cast<void*>(data), dtype, dims, view));
  return view;
}

double Activate(std::string_view name, double gate, double up) {
  if (name == "swigluoai") {
    gate = std::min(gate, 7.0), up = std::clamp(up, -7.0, 7.0);
    return gate / (1.0 + std::exp(-1.702 * gate)) * (up + 1.0);
  }
  const double slope =
      name == "silu" ? 1.0 : 2.0 * std::sqrt(2.0 / M_PI) * (1.0 + 0.044715 * gate * gate);
  return gate / (1.0 + std::exp(-slope * gate)) * up;
}

// A layer on the host and on the device, and the op's operands.
struct Layer {
  Layer(const Case& c, std::mt19937& random)
      : c(c),
        x(RandomElements(c.dtype, c.t * c.n, 1.0, random())),
        w1(RandomElements(c.dtype, c.e * 2 * c.i * c.n, 1.0 / std::sqrt(c.n), random())),
        w2(RandomElements(c.dtype, c.e * c.n * c.i, 1.0 / std::sqrt(c.i + 1), random())),
        weights(RandomElements(c.weights_dtype, c.t * c.k, 1.0, random())),
        b1(RandomElements(c.dtype, c.e * 2 * c.i, 1.0, random())),
        b2(RandomElements(c.dtype, c.e * c.n, 1.0, random())),
        ids(RandomIndices(c.t * c.k, c.mapped < 0 ? c.e : c.mapped, c.wide, random)),
        map(RandomIndices(std::max<int64_t>(c.mapped, 0), c.e, c.wide, random)),
        x_device(x.bits()),
        w1_device(w1.bits()),
        w2_device(w2.bits()),
        weights_device(weights.bits()),
        b1_device(b1.bits()),
        b2_device(b2.bits()),
        ids_device(ids, c.wide),
        map_device(map, c.wide) {
    const DType index = c.wide ? DType::kI64 : DType::kI32;
    op.x = View(x_device.data(), c.dtype, {c.t, c.n});
    op.w1 = View(w1_device.data(), c.dtype, {c.e, 2 * c.i, c.n});
    op.w2 = View(w2_device.data(), c.dtype, {c.e, c.n, c.i});
    op.weights = View(weights_device.data(), c.weights_dtype, {c.t, c.k});
    op.ids = View(ids_device.view().data, index, {c.t, c.k});
    if (c.biases) op.w1_bias = View(b1_device.data(), c.dtype, {c.e, 2 * c.i});
    if (c.biases) op.w2_bias = View(b2_device.data(), c.dtype, {c.e, c.n});
    if (c.mapped >= 0) op.expert_map = View(map_device.view().data, index, {c.mapped});
    op.activation = c.activation;
    op.apply_router_weight_on_input = c.on_input;
  }

  int64_t ExpertOf(int64_t pair) const {
    int64_t id = ids[pair];
    if (c.mapped >= 0) id = id >= 0 && id < c.mapped ? map[id] : -1;
    return id >= 0 && id < c.e ? id : -1;
  }
  // Adds what a pair gives to its token's row.
  void AddPair(int64_t pair, std::vector<double>& out) const {
    const int64_t e = ExpertOf(pair), token = pair / c.k;
    if (e < 0) return;
    std::vector<double> hidden(2 * c.i), gated(c.i);
    for (int64_t j = 0; j < 2 * c.i; ++j) {
      for (int64_t q = 0; q < c.n; ++q)
        hidden[j] += static_cast<double>(x[token * c.n + q]) * w1[(e * 2 * c.i + j) * c.n + q];
      hidden[j] = (c.on_input ? weights[pair] * hidden[j] : hidden[j]) +
                  (c.biases ? b1[e * 2 * c.i + j] : 0.0);
    }
    const bool in_turn = c.activation == "swigluoai";
    for (int64_t j = 0; j < c.i; ++j)
      gated[j] = Activate(c.activation, hidden[in_turn ? 2 * j : j],
                          hidden[in_turn ? 2 * j + 1 : c.i + j]);
    for (int64_t j = 0; j < c.n; ++j) {
      double down = c.biases ? b2[e * c.n + j] : 0.0;
      for (int64_t q = 0; q < c.i; ++q) down += gated[q] * w2[(e * c.n + j) * c.i + q];
      out[j] += (c.on_input ? 1.0 : weights[pair]) * down;
    }
  }
  // All rows, in f64.
  std::vector<std::vector<double>> Results() const {
    const int workers = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    std::vector<std::vector<double>> want(c.t, std::vector<double>(c.n, 0.0));
    std::vector<std::thread> pool;
    for (int worker = 0; worker < workers; ++worker)
      pool.emplace_back([&, worker] {
        for (int64_t token = worker; token < c.t; token += workers)
          for (int64_t j = 0; j < c.k; ++j) AddPair(token * c.k + j, want[token]);
      });
    for (std::thread& thread : pool) thread.join();
    return want;
  }

  Case c;
  Elements x, w1, w2, weights, b1, b2;
  std::vector<int64_t> ids, map;
  DeviceArray<char> x_device, w1_device, w2_device, weights_device, b1_device, b2_device;
  attention::DeviceIndices ids_device, map_device;
  FusedExperts op;
};

// The relative Frobenius error.
double ErrorOf(const Elements& got, const std::vector<std::vector<double>>& want) {
  double off = 0.0, size = 0.0;
  size_t i = 0;
  for (const std::vector<double>& row : want)
    for (const double x : row) {
      const double difference = got[i++] - x;
      off += std::isnan(difference) ? 1e30 : difference * difference;
      size += x * x;
    }
  return std::sqrt(off / (size > 0 ? size : 1.0));
}

// Memory with as much before and behind it that no kernel may touch.
class Guarded {
 public:
  explicit Guarded(int64_t bytes) : bytes_(bytes), array_(bytes + 2 * kGuard) { array_.Poison(); }
  char* data() const { return array_.data() + kGuard; }
  std::vector<char> Read(const std::string& what) const {
    const std::vector<char> all = array_.ToHost();
    for (int64_t i = 0; i < kGuard; ++i) {
      if (all[i] == char(0xff) && all[all.size() - 1 - i] == char(0xff)) continue;
      std::printf("FAILED %s: something is written outside of its memory\n", what.c_str());
      std::exit(1);
    }
    return {all.begin() + kGuard, all.end() - kGuard};
  }

 private:
  static constexpr int64_t kGuard = 4096;
  int64_t bytes_;
  DeviceArray<char> array_;
};

double Tolerance(DType dtype) { return dtype == kF32 ? 5e-6 : dtype == kF16 ? 2e-3 : 1.6e-2; }

// More tiles than any GPU has multiprocessors, the last of them rows of no expert: a CTA of
// Hopper's product gathers rows, and then has none to gather.
Case LongCase(DType dtype) {
  return {.dtype = dtype,
          .weights_dtype = kF32,
          .t = 6000,
          .n = 128,
          .i = 64,
          .e = 8,
          .k = 4,
          .mapped = 8,
          .activation = "silu",
          .biases = false,
          .on_input = false,
          .wide = false};
}

// Whose counts leave room for few warps of one CTA, which do not keep their pairs in registers.
Case ManyExperts(DType dtype) {
  Case c = LongCase(dtype);
  c.t = 1500, c.n = c.i = 8, c.e = 3000, c.mapped = -1;
  return c;
}

// Runs twice over poisoned memory, the second time with memory for some of the tokens.
bool CheckCase(const Case& c, std::mt19937& random, double& worst) {
  Layer layer(c, random);
  FusedExperts& op = layer.op;
  Require(op.Check());
  const int64_t floats = op.WorkspaceDims()[1], bytes = c.t * c.n * Bytes(c.dtype);
  std::vector<std::vector<char>> results;
  for (const int64_t share : {1, 1, 2}) {
    // With half the memory for a token or two, there may be none for one.
    if (share == 2 && (c.t < 200 || c.k * c.i * c.e == 0)) continue;
    const Guarded out(bytes), workspace(floats / share * 4);
    op.out = View(out.data(), c.dtype, {c.t, c.n});
    op.workspace = View(workspace.data(), kF32, {1, floats / share});
    Require(op.Run(ContextOn()));
    Await(nullptr, c.Name(), 20);
    workspace.Read(c.Name());
    results.push_back(out.Read(c.Name()));
  }
  bool right = results[0] == results[1];
  if (!right) std::printf("FAILED %s: other bits the second time\n", c.Name().c_str());
  const std::vector<std::vector<double>> want = layer.Results();
  for (const std::vector<char>& result : results) {
    const double error = ErrorOf(Elements(c.dtype, result), want);
    worst = std::max(worst, error / Tolerance(c.dtype));
    if (error <= Tolerance(c.dtype)) continue;
    std::printf("FAILED %s: error %.2e\n", c.Name().c_str(), error);
    right = false;
  }
  return right;
}

bool CheckAll(int cases) {
  std::mt19937 random(20261123);
  int failures = 0;
  for (const DType dtype : {kF32, kF16, kBF16}) {
    double worst = 0.0;
    for (int i = 0; i < cases; ++i)
      failures += !CheckCase(RandomCase(dtype, random), random, worst);
    failures += !CheckCase(LongCase(dtype), random, worst);
    failures += !CheckCase(ManyExperts(dtype), random, worst);
    std::printf("%-5s worst error, of the tolerance: %.2f\n", std::string(Name(dtype)).c_str(),
                worst);
  }
  std::printf("%d failures\n", failures);
  return failures == 0;
}

}  // namespace
}  // namespace intarsia

#include "tests/cuda/fused_experts_time.cuh"
#include "tests/cuda/topk_router_time.cuh"

int main(int argc, char** argv) {
  using namespace intarsia;
  const std::string only = argc > 1 ? argv[1] : "";
  if (only == "router") {
    TimeRouters();
    return 0;
  }
  if (only != "time" && !CheckAll(argc == 3 ? std::atoi(argv[2]) : 80)) return 1;
  if (only != "check") TimeAll(argc > 2 ? std::atol(argv[2]) : 0, argc > 3 ? argv[3] : "");
  return 0;
}
