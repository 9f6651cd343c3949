// Checks the kernels of grouped products against f64 on random groups, each kernel that can run a
// call, then times them for layers of models. Needs a GPU. Exits with 1 on a failure. Arguments:
// "check [cases]" or "time [tokens]" ask for one half of it.
#include <functional>

#include "src/matmul/cuda/launch.h"
#include "tests/cuda/attention_time.cuh"

namespace intarsia::matmul {
namespace {

using attention::Await;
using attention::ContextOn;
using attention::DeviceArray;
using attention::Elements;
using attention::Require;

struct Case {
  DType dtype, out;
  int64_t m, k, n, groups, all, offset = 0, mx = 0;  // mx > 0: rows are gathered from so many
  bool transposed, bias, infinite = false;
  std::vector<int64_t> sizes;

  std::string Name() const {
    return std::string(intarsia::Name(dtype)) + " m " + std::to_string(m) + " k " +
           std::to_string(k) + " n " + std::to_string(n) + " groups " + std::to_string(groups) +
           " of " + std::to_string(all) + " from " + std::to_string(offset) + " mx " +
           std::to_string(mx) + (transposed ? " transposed" : "") + (bias ? " bias" : "");
  }
};

// Where each group at hand begins and ends.
std::vector<RowRange> RangesOf(const Case& c) {
  std::vector<int64_t> ends{0};
  for (const int64_t size : c.sizes)
    ends.push_back(std::min(c.m, ends.back() + std::clamp<int64_t>(size, 0, c.m)));
  std::vector<RowRange> ranges;
  for (int64_t i = 0; i < c.groups; ++i) {
    const int64_t group = std::clamp(c.offset, -c.groups, c.all) + i;
    if (group < 0 || group >= c.all)
      ranges.push_back({});
    else
      ranges.push_back({ends[group], ends[group + 1]});
  }
  return ranges;
}

std::vector<int64_t> RandomSizes(int64_t m, int64_t all, std::mt19937& random) {
  std::vector<int64_t> sizes(all, 0);
  const auto pick = [&](int64_t below) { return static_cast<int64_t>(random() % below); };
  switch (all == 0 ? 5u : random() % 5u) {
    case 0:  // balanced
      for (int64_t i = 0; i < m; ++i) ++sizes[pick(all)];
      break;
    case 1:  // Zipf, and some rows of no group
      for (int64_t i = 0; i < m; ++i) {
        const double x = std::pow(all + 1.0, static_cast<double>(random()) / 4294967296.0) - 1.0;
        if (i % 9) ++sizes[std::min<int64_t>(static_cast<int64_t>(x), all - 1)];
      }
      break;
    case 2:  // one takes all
      sizes[pick(all)] = m;
      break;
    case 3:  // a few, sum below m
      for (int64_t i = 0; i < m / 2; ++i) ++sizes[pick(all) / 3 * 3 % all];
      break;
    case 4:  // hostile
      for (int64_t& size : sizes) {
        const int64_t hostile[] = {std::numeric_limits<int64_t>::min(),
                                   std::numeric_limits<int64_t>::max(),
                                   -1,
                                   0,
                                   m / 3,
                                   1,
                                   2};
        size = hostile[random() % 7];
      }
      break;
  }
  return sizes;
}

Case RandomCase(DType dtype, std::mt19937& random) {
  const auto pick = [&](std::initializer_list<int64_t> values) {
    return values.begin()[random() % values.size()];
  };
  Case c{.dtype = dtype, .out = random() % 3 ? dtype : kF32};
  c.m = pick({0, 1, 8, 13, 64, 200, 513, 1500});
  c.k = pick({0, 8, 64, 72, 200, 256, 77, 1032});
  c.n = pick({8, 64, 136, 256, 320, 33, 1});
  c.groups = c.all = pick({1, 2, 8, 33, 128, 300});
  if (random() % 3 == 0) {
    c.all = c.groups + pick({0, 1, 40});
    c.offset = pick({0, 1, 3, -2, 40, 1000, std::numeric_limits<int64_t>::max(),
                     std::numeric_limits<int64_t>::min()});
  }
  if (random() % 3 == 0) c.mx = pick({1, 5, 300});
  c.transposed = random() % 2;
  c.bias = random() % 2;
  c.sizes = RandomSizes(c.m, c.all, random);
  return c;
}

// More tiles than any GPU has multiprocessors, the last of them rows of no group: a CTA of Hopper's
// kernel gathers rows, and then has none to gather.
Case LongCase(DType dtype) {
  Case c{.dtype = dtype, .out = dtype};
  c.m = 26000, c.k = 128, c.n = 136, c.groups = c.all = 8, c.mx = 300;
  c.transposed = true, c.bias = false;
  c.sizes.assign(8, 2500);
  return c;
}

Elements RandomElements(DType dtype, int64_t size, uint64_t seed) {
  Elements x(dtype, static_cast<size_t>(size));
  attention::Normal normal(seed);
  for (int64_t i = 0; i < size; ++i) x.Set(static_cast<size_t>(i), normal());
  return x;
}
// Rows of which one may have a NaN. It belongs to one group, and no other may see it.
Elements RandomRowsOf(DType dtype, int64_t size, uint64_t seed) {
  Elements x = RandomElements(dtype, size, seed);
  if (size > 0 && seed % 3 == 0)
    x.Set(seed % static_cast<uint64_t>(size), std::numeric_limits<float>::quiet_NaN());
  return x;
}

// Results with as many bytes before and behind them that no kernel may touch.
class Guarded {
 public:
  Guarded(DType dtype, int64_t size)
      : dtype_(dtype), bytes_(size * Bytes(dtype)), array_(bytes_ + 2 * kGuard) {
    array_.Poison();
  }
  char* data() const { return array_.data() + kGuard; }
  Elements Read() const {
    const std::vector<char> all = array_.ToHost();
    for (int64_t i = 0; i < kGuard; ++i) {
      if (all[i] != char(0xff) || all[all.size() - 1 - i] != char(0xff)) {
        std::printf("something is written outside of the results\n");
        std::exit(1);
      }
    }
    return {dtype_, {all.begin() + kGuard, all.end() - kGuard}};
  }

 private:
  static constexpr int64_t kGuard = 4096;
  DType dtype_;
  int64_t bytes_;
  DeviceArray<char> array_;
};

// The relative Frobenius error of results of `rows` rows of n columns; row(i) gives the right ones.
double ErrorOf(const Elements& got, int64_t rows, int64_t n,
               const std::function<std::vector<double>(int64_t)>& row) {
  const int workers = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::vector<double> off(workers, 0.0), size(workers, 0.0);
  std::vector<std::thread> pool;
  for (int worker = 0; worker < workers; ++worker)
    pool.emplace_back([&, worker] {
      for (int64_t i = worker; i < rows; i += workers) {
        const std::vector<double> want = row(i);
        for (int64_t j = 0; j < n; ++j) {
          const double found = got[static_cast<size_t>(i * n + j)];
          if (std::isnan(want[j]) && std::isnan(found)) continue;
          const double difference = found - want[j];
          off[worker] += std::isnan(difference) ? 1e30 : difference * difference;
          size[worker] += want[j] * want[j];
        }
      }
    });
  for (std::thread& thread : pool) thread.join();
  const double all = std::accumulate(size.begin(), size.end(), 0.0);
  return std::sqrt(std::accumulate(off.begin(), off.end(), 0.0) / (all > 0 ? all : 1.0));
}

double Tolerance(DType out) { return out == kF32 ? 5e-6 : out == kF16 ? 6e-4 : 5e-3; }

struct Arrays {
  Elements x, w, bias;
  std::vector<int64_t> rows;
  DeviceArray<char> x_device, w_device, bias_device;
  DeviceArray<int64_t> sizes, offset, rows_device;

  static std::vector<int64_t> RandomRows(const Case& c, std::mt19937& random) {
    std::vector<int64_t> rows(c.mx ? c.m : 0, -1);
    if (c.infinite) return rows;
    for (int64_t& row : rows) row = static_cast<int64_t>(random() % (c.mx + 3)) - 1;
    if (!rows.empty() && random() % 2) rows[random() % rows.size()] = int64_t{1} << 62;
    return rows;
  }
  static Elements RandomWeights(const Case& c, std::mt19937& random) {
    Elements w = RandomElements(c.dtype, c.groups * c.k * c.n, random());
    if (c.infinite)
      for (int64_t i = 0; i < c.groups * c.k * c.n; ++i) w.Set(static_cast<size_t>(i), INFINITY);
    return w;
  }
  Arrays(const Case& c, std::mt19937& random)
      : x(RandomRowsOf(c.dtype, (c.mx ? c.mx : c.m) * c.k, random())),
        w(RandomWeights(c, random)),
        bias(RandomElements(c.dtype, c.groups * c.n, random())),
        rows(RandomRows(c, random)),
        x_device(x.bits()),
        w_device(w.bits()),
        bias_device(bias.bits()),
        sizes(c.sizes),
        offset(std::vector<int64_t>{c.offset}),
        rows_device(rows) {}

  GroupSizes Groups(const Case& c) const {
    return {.sizes = {sizes.data(), true},
            .all = c.all,
            .count = c.groups,
            .m = c.m,
            .offset = {c.all != c.groups || c.offset ? offset.data() : nullptr, true}};
  }
};

bool Report(const Case& c, const char* kernel, double error, bool same, double& worst) {
  worst = std::max(worst, error / Tolerance(c.out));
  if (error <= Tolerance(c.out) && same) return true;
  std::printf("FAILED %s: %s: error %.2e%s\n", kernel, c.Name().c_str(), error,
              same ? "" : ", other bits the second time");
  return false;
}

// Runs twice over poisoned results: the bits must be the same.
bool CheckRun(const Case& c, const char* kernel, int64_t rows, int64_t n,
              const std::function<Status(char*)>& launch,
              const std::function<std::vector<double>(int64_t)>& row, double& worst) {
  std::vector<Elements> results;
  for (int run = 0; run < 2; ++run) {
    const Guarded out(c.out, rows * n);
    Require(launch(out.data()));
    Await(nullptr, c.Name(), 20);
    results.push_back(out.Read());
  }
  return Report(c, kernel, ErrorOf(results[0], rows, n, row),
                results[0].bits() == results[1].bits(), worst);
}

// What gates and ups become: both rounded before they meet.
std::vector<double> Gated(const Case& c, std::string_view activation,
                          const std::vector<double>& columns) {
  const int64_t n = c.n / 2;
  Elements rounded(c.dtype, static_cast<size_t>(c.n));
  for (int64_t i = 0; i < c.n; ++i) rounded.Set(static_cast<size_t>(i), columns[i]);
  std::vector<double> results(n);
  for (int64_t i = 0; i < n; ++i) {
    const bool in_turn = activation == "swigluoai";
    double gate = rounded[static_cast<size_t>(in_turn ? 2 * i : i)];
    double up = rounded[static_cast<size_t>(in_turn ? 2 * i + 1 : i + n)];
    double slope = activation == "silu" ? 1.0 : 2.0 * std::sqrt(2.0 / M_PI);
    if (activation == "gelu_tanh") slope *= 1.0 + 0.044715 * gate * gate;
    if (in_turn) {
      gate = gate > 7.0 ? 7.0 : gate, up = (up > 7.0 ? 7.0 : up < -7.0 ? -7.0 : up) + 1.0;
      slope = 1.702;  // a NaN stays one
    }
    results[i] = gate / (1.0 + std::exp(-slope * gate)) * up;
  }
  return results;
}

int CheckCase(const Case& c, std::mt19937& random, double& worst) {
  const Arrays arrays(c, random);
  const std::vector<RowRange> ranges = RangesOf(c);
  GroupedParams p;
  p.dtype = c.dtype, p.out_dtype = c.out;
  p.x = arrays.x_device.data(), p.w = arrays.w_device.data();
  p.bias = c.bias ? arrays.bias_device.data() : nullptr;
  p.k = c.k, p.n = c.n, p.x_rows = c.mx ? c.mx : c.m;
  p.transposed = c.transposed;
  p.groups = arrays.Groups(c);
  if (c.mx) p.rows = {arrays.rows_device.data(), true};
  const auto row = [&](int64_t r) {
    std::vector<double> want(c.n, 0.0);
    const int64_t taken = c.mx ? arrays.rows[r] : r;
    if (taken < 0 || taken >= p.x_rows) return want;
    for (int64_t g = 0; g < c.groups; ++g) {
      if (r < ranges[g].begin || r >= ranges[g].end) continue;
      for (int64_t j = 0; j < c.n; ++j) {
        want[j] = c.bias ? arrays.bias[g * c.n + j] : 0.0;
        for (int64_t q = 0; q < c.k; ++q)
          want[j] += static_cast<double>(arrays.x[taken * c.k + q]) *
                     arrays.w[c.transposed ? (g * c.n + j) * c.k + q : (g * c.k + q) * c.n + j];
      }
    }
    return want;
  };
  const CudaContext context = ContextOn();
  int failures = 0;
  for (const GroupedCandidate& candidate : GroupedCandidates()) {
    if (!CanRun(candidate, p, *context.device)) continue;
    const auto launch = [&](char* out) {
      p.out = out;
      return Launch(p, context, candidate);
    };
    failures += !CheckRun(c, candidate.name, c.m, c.n, launch, row, worst);
  }
  if (c.n % 2 != 0 || c.out != c.dtype) return failures;
  const std::string_view activation = std::array{"silu", "gelu_tanh", "swigluoai"}[random() % 3];
  p.gating = Gating::Of(activation, 7.0f, 1.702f);
  const auto gated = [&](int64_t r) { return Gated(c, activation, row(r)); };
  for (const GroupedCandidate& candidate : GroupedCandidates()) {
    if (!CanRun(candidate, p, *context.device)) continue;
    const auto launch = [&](char* out) {
      p.out = out;
      return Launch(p, context, candidate);
    };
    failures += !CheckRun(c, Text(candidate.name, ", ", activation).c_str(), c.m, c.n / 2, launch,
                          gated, worst);
  }
  return failures;
}

int CheckGradient(Case c, std::mt19937& random, double& worst) {
  c.mx = 0;
  const Arrays arrays(c, random);
  const Elements d_out = RandomRowsOf(c.dtype, c.m * c.n, random());
  const DeviceArray<char> d_out_device(d_out.bits());
  const std::vector<RowRange> ranges = RangesOf(c);
  GroupedGradientParams p;
  p.dtype = c.dtype, p.out_dtype = c.out;
  p.x = arrays.x_device.data(), p.d_out = d_out_device.data();
  p.k = c.k, p.n = c.n;
  p.groups = arrays.Groups(c);
  const auto row = [&](int64_t i) {
    std::vector<double> want(c.n, 0.0);
    const RowRange rows = ranges[i / c.k];
    for (int64_t r = rows.begin; r < rows.end; ++r)
      for (int64_t j = 0; j < c.n; ++j)
        want[j] += static_cast<double>(arrays.x[r * c.k + i % c.k]) * d_out[r * c.n + j];
    return want;
  };
  const CudaContext context = ContextOn();
  int failures = 0;
  for (const GradientCandidate& candidate : GradientCandidates()) {
    if (!CanRun(candidate, p, *context.device)) continue;
    const auto launch = [&](char* out) {
      p.out = out;
      return Launch(p, context, candidate);
    };
    failures += !CheckRun(c, Text("gradient, ", candidate.name).c_str(), c.groups * c.k, c.n,
                          launch, row, worst);
  }
  return failures;
}

// No row takes one of x, and is 0 beside infinite weights.
Case MissingCase(DType dtype) {
  Case c{.dtype = dtype, .out = dtype};
  c.m = 40, c.k = 128, c.n = 136, c.groups = c.all = 4, c.mx = 3;
  c.transposed = c.bias = c.infinite = true;
  c.sizes = {30, 2, 0, 8};
  return c;
}

bool CheckAll(int cases) {
  std::mt19937 random(20261123);
  int failures = 0;
  for (const DType dtype : {kF32, kF16, kBF16}) {
    double forward = 0.0, gradient = 0.0;
    for (int i = 0; i < cases; ++i) {
      failures += CheckCase(RandomCase(dtype, random), random, forward);
      failures += CheckGradient(RandomCase(dtype, random), random, gradient);
    }
    failures += CheckCase(LongCase(dtype), random, forward);
    failures += CheckCase(MissingCase(dtype), random, forward);
    std::printf("%-5s worst error, of the tolerance: products %.2f, gradients %.2f\n",
                std::string(Name(dtype)).c_str(), forward, gradient);
  }
  std::printf("%d failures\n", failures);
  return failures == 0;
}

}  // namespace
}  // namespace intarsia::matmul

#include "tests/cuda/grouped_matmul_time.cuh"

int main(int argc, char** argv) {
  using namespace intarsia::matmul;
  const std::string only = argc > 1 ? argv[1] : "";
  if (only != "time" && !CheckAll(argc == 3 ? std::atoi(argv[2]) : 60)) return 1;
  if (only != "check") TimeAll(argc == 3 ? std::atol(argv[2]) : 0);
  return 0;
}
