// Times the kernels of grouped products for layers of models, bf16: every kernel that can run a
// call, in a captured graph of calls with different routings, so that they touch different weights.
#pragma once
#include "src/matmul/cuda/launch.h"
#include "tests/cuda/attention_time.cuh"

namespace intarsia::matmul {

struct Layer {
  const char* name;
  int64_t groups, top, k, n;
};
inline constexpr Layer kLayers[] = {{"Qwen3-30B-A3B", 128, 8, 2048, 1536},
                                    {"gpt-oss-20b", 32, 4, 2880, 5760},
                                    {"Mixtral 8x7B", 8, 2, 4096, 28672}};
// Of one H200 (docs/notebook/ops.md).
inline constexpr double kBytesPerUs = 4.2e6, kFlopsPerUs = 697e6;
inline constexpr int kRoutings = 10;

// Rows of each group when each token takes `top` of them: all alike, or as 1 : 1/2 : 1/3 ...
inline std::vector<int64_t> Routed(const Layer& layer, int64_t tokens, bool zipf,
                                   std::mt19937& random) {
  std::vector<int64_t> sizes(layer.groups, 0), names(layer.groups);
  std::iota(names.begin(), names.end(), 0);
  std::shuffle(names.begin(), names.end(), random);
  for (int64_t token = 0; token < tokens; ++token) {
    // The largest of log(weight) + Gumbel noise are a draw without replacement.
    std::vector<std::pair<double, int64_t>> keys;
    for (int64_t i = 0; i < layer.groups; ++i) {
      const double uniform = (random() + 0.5) / 4294967296.0;
      keys.push_back({(zipf ? std::log(i + 1.0) : 0.0) + std::log(-std::log(uniform)), names[i]});
    }
    std::partial_sort(keys.begin(), keys.begin() + layer.top, keys.end());
    for (int64_t i = 0; i < layer.top; ++i) ++sizes[keys[i].second];
  }
  return sizes;
}

inline const char* KindOf(GroupedKernel kernel) {
  if (kernel == GroupedKernel::kStream) return "stream";
  return kernel == GroupedKernel::kTiles ? "tiles" : "wgmma";
}

// A captured graph of calls; enqueue(i) is a call with routing i.
class TimedGraph {
 public:
  explicit TimedGraph(const std::function<void(int, const CudaContext&)>& enqueue) {
    attention::Require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    const CudaContext context = attention::ContextOn(stream_);
    enqueue(0, context);
    attention::Await(stream_, "a first call", 20);
    attention::Require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < kRoutings; ++i) enqueue(i, context);
    attention::Require(cudaStreamEndCapture(stream_, &graph_));
    attention::Require(cudaGraphInstantiate(&executable_, graph_, 0));
    attention::Require(cudaEventCreate(&begin_));
    attention::Require(cudaEventCreate(&end_));
  }
  ~TimedGraph() {
    attention::Require(cudaEventDestroy(begin_));
    attention::Require(cudaEventDestroy(end_));
    attention::Require(cudaGraphExecDestroy(executable_));
    attention::Require(cudaGraphDestroy(graph_));
    attention::Require(cudaStreamDestroy(stream_));
  }
  TimedGraph(const TimedGraph&) = delete;
  TimedGraph& operator=(const TimedGraph&) = delete;

  // Replays it, and notes the time of a call.
  void Replay() {
    float milliseconds = 0.0f;
    attention::Require(cudaEventRecord(begin_, stream_));
    attention::Require(cudaGraphLaunch(executable_, stream_));
    attention::Require(cudaEventRecord(end_, stream_));
    attention::Await(stream_, "timed calls", 60);
    attention::Require(cudaEventElapsedTime(&milliseconds, begin_, end_));
    times_.push_back(milliseconds * 1e3 / kRoutings);
  }
  // In microseconds, without the first `skipped` replays.
  double Median(size_t skipped) const {
    std::vector<double> times(times_.begin() + skipped, times_.end());
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_;
  cudaGraphExec_t executable_;
  cudaEvent_t begin_, end_;
  std::vector<double> times_;
};

// The median time of a call in microseconds.
inline double MedianOfGraphs(const std::function<void(int, const CudaContext&)>& enqueue) {
  TimedGraph graph(enqueue);
  for (int replay = 0; replay < 7; ++replay) graph.Replay();
  return graph.Median(2);
}

// One layer with its weights on the GPU.
class TimedLayer {
 public:
  explicit TimedLayer(const Layer& layer, int64_t most_tokens)
      : layer_(layer),
        w_(Elements(layer.groups * layer.k, layer.n)),
        x_(Elements(most_tokens * layer.top, layer.k)),
        out_(Elements(most_tokens * layer.top, layer.n)),
        d_w_(Elements(layer.groups * layer.k, layer.n)) {
    attention::FillRandom(kBF16, w_.data(), layer.groups * layer.k * layer.n);
    attention::FillRandom(kBF16, x_.data(), most_tokens * layer.top * layer.k);
    attention::FillRandom(kBF16, out_.data(), most_tokens * layer.top * layer.n);
    attention::Require(cudaDeviceSynchronize());
  }

  void Time(int64_t tokens, bool zipf, bool transposed) const {
    std::mt19937 random(static_cast<uint32_t>(tokens));
    const int64_t m = tokens * layer_.top;
    std::vector<int64_t> all;
    double touched = 0.0;
    for (int i = 0; i < kRoutings; ++i) {
      const std::vector<int64_t> sizes = Routed(layer_, tokens, zipf, random);
      touched += std::ranges::count_if(sizes, [](int64_t size) { return size > 0; });
      all.insert(all.end(), sizes.begin(), sizes.end());
    }
    const attention::DeviceArray<int64_t> routings(all);
    const double rows = static_cast<double>(m), k = layer_.k, n = layer_.n;
    const double bytes = 2.0 * (touched / kRoutings * k * n + rows * (k + n));
    const double floor = std::max(bytes / kBytesPerUs, 2.0 * rows * k * n / kFlopsPerUs);
    std::printf("%-14s %5ld tokens %-8s %-6s floor %7.1f us:", layer_.name, long(tokens),
                zipf ? "zipf" : "balanced", transposed ? "[n, k]" : "[k, n]", floor);
    GroupedParams p;
    p.dtype = p.out_dtype = kBF16;
    p.x = x_.data(), p.w = w_.data(), p.out = out_.data();
    p.k = layer_.k, p.n = layer_.n, p.x_rows = m;
    p.transposed = transposed;
    p.groups = {.sizes = {}, .all = layer_.groups, .count = layer_.groups, .m = m, .offset = {}};
    TimeCandidates(p, routings.data(), floor);
    if (!transposed && tokens >= 512) {
      TimeGathered(p, tokens, routings.data(), floor, random);
      TimeGradientOfX(p, routings.data(), floor);
      TimeGradient(p, routings.data(), floor);
    }
    std::fflush(stdout);
  }

 private:
  static size_t Elements(int64_t rows, int64_t columns) {
    return static_cast<size_t>(rows * columns * 2);
  }
  void TimeCandidates(GroupedParams p, const int64_t* routings, double floor) const {
    const cuda::Device& device = *attention::ContextOn().device;
    const GroupedCandidate* const choice = Choose(p, device);
    for (const GroupedCandidate& candidate : GroupedCandidates()) {
      // Hopeless ones would take most of the time.
      const bool hopeless = candidate.kernel == GroupedKernel::kStream
                                ? p.m() > 64 * layer_.groups
                                : candidate.kernel == GroupedKernel::kTiles && choice &&
                                      choice->kernel == GroupedKernel::kWarpgroups &&
                                      p.m() > 32 * layer_.groups;
      if (!CanRun(candidate, p, device) || hopeless) continue;
      const double us = MedianOfGraphs([&](int i, const CudaContext& context) {
        p.groups.sizes = {routings + i * layer_.groups, true};
        attention::Require(Launch(p, context, candidate));
      });
      std::printf("  %s%s %d: %.1f us %.2fx", &candidate == choice ? "*" : "",
                  KindOf(candidate.kernel), candidate.rows, us, us / floor);
    }
    std::printf("\n");
  }
  // Each row takes one of the tokens.
  void TimeGathered(GroupedParams p, int64_t tokens, const int64_t* routings, double floor,
                    std::mt19937& random) const {
    std::vector<int32_t> rows(p.m());
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i % tokens);
    std::shuffle(rows.begin(), rows.end(), random);
    const attention::DeviceArray<int32_t> on_device(rows);
    p.rows = {on_device.data(), false};
    p.x_rows = tokens;
    std::printf("%46s gathered:", "");
    TimeCandidates(p, routings, floor);
  }
  // d_out w', as large a product.
  void TimeGradientOfX(GroupedParams p, const int64_t* routings, double floor) const {
    std::swap(p.k, p.n);
    p.x = out_.data(), p.out = d_w_.data();
    p.transposed = !p.transposed;
    std::printf("%46s gradient of x:", "");
    TimeCandidates(p, routings, floor);
  }
  void TimeGradient(GroupedParams product, const int64_t* routings, double floor) const {
    GroupedGradientParams p;
    p.dtype = p.out_dtype = kBF16;
    p.x = x_.data(), p.d_out = out_.data(), p.out = d_w_.data();
    p.k = layer_.k, p.n = layer_.n;
    p.groups = product.groups;
    const cuda::Device& device = *attention::ContextOn().device;
    const GradientCandidate* const choice = Choose(p, device);
    std::printf("%46s gradient of w:", "");
    for (const GradientCandidate& candidate : GradientCandidates()) {
      if (!CanRun(candidate, p, device)) continue;
      const auto enqueue = [&](int i, const CudaContext& context) {
        p.groups.sizes = {routings + i * layer_.groups, true};
        attention::Require(Launch(p, context, candidate));
      };
      const double us = MedianOfGraphs(enqueue);
      std::printf("  %s%s: %.1f us, %.2fx the product's floor", &candidate == choice ? "*" : "",
                  candidate.name, us, us / floor);
      if (&candidate == choice) TimeInTurns(product, routings, enqueue);
    }
    std::printf("\n");
  }
  // A GPU that did nothing before runs the first calls at a higher clock, and one that is hot keeps
  // to its power limit. So both take turns until the clock has settled.
  void TimeInTurns(GroupedParams product, const int64_t* routings,
                   const std::function<void(int, const CudaContext&)>& gradient) const {
    const GroupedCandidate* const choice = Choose(product, *attention::ContextOn().device);
    TimedGraph ours(gradient), forward([&](int i, const CudaContext& context) {
      product.groups.sizes = {routings + i * layer_.groups, true};
      attention::Require(Launch(product, context, *choice));
    });
    constexpr int kTurns = 40, kSettling = 15;
    for (int turn = 0; turn < kTurns; ++turn) {
      forward.Replay();
      ours.Replay();
    }
    const double us = ours.Median(kSettling), of_product = forward.Median(kSettling);
    std::printf(" (in turns with the product %.1f and %.1f us, %.1f%% of its rate)", us, of_product,
                100.0 * of_product / us);
  }

  const Layer& layer_;
  attention::DeviceArray<char> w_, x_, out_, d_w_;
};

// `only` > 0: this number of tokens alone. A star marks the kernel that is chosen.
inline void TimeAll(int64_t only) {
  for (const Layer& layer : kLayers) {
    const TimedLayer timed(layer, only ? only : 4096);
    for (const int64_t tokens : {1, 16, 64, 512, 4096}) {
      if (only && tokens != only) continue;
      for (const bool zipf : {false, true})
        for (const bool transposed : {false, true}) timed.Time(tokens, zipf, transposed);
    }
  }
}

}  // namespace intarsia::matmul
