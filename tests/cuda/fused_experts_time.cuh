// Times fused_experts for layers of models, bf16, beside its two grouped products alone: in a
// captured graph of calls with different routings, so that they touch different weights.
#pragma once
#include "tests/cuda/grouped_matmul_time.cuh"

namespace intarsia {

struct TimedModel {
  const char* name;
  int64_t e, k, n, i;
  const char* activation;
};
inline constexpr TimedModel kModels[] = {{"Qwen3-30B-A3B", 128, 8, 2048, 768, "silu"},
                                         {"gpt-oss-20b", 32, 4, 2880, 2880, "swigluoai"},
                                         {"Mixtral 8x7B", 8, 2, 4096, 14336, "silu"}};

// Ids of each token, drawn without replacement: all experts alike, or as 1 : 1/2 : 1/3 ...
inline std::vector<int64_t> RoutedIds(const TimedModel& model, int64_t tokens, bool zipf,
                                      std::mt19937& random) {
  std::vector<int64_t> names(model.e), ids;
  std::iota(names.begin(), names.end(), 0);
  std::shuffle(names.begin(), names.end(), random);
  for (int64_t token = 0; token < tokens; ++token) {
    std::vector<std::pair<double, int64_t>> keys;
    for (int64_t e = 0; e < model.e; ++e) {
      const double uniform = (random() + 0.5) / 4294967296.0;  // log(weight) + Gumbel noise
      keys.push_back({(zipf ? std::log(e + 1.0) : 0.0) + std::log(-std::log(uniform)), names[e]});
    }
    std::partial_sort(keys.begin(), keys.begin() + model.k, keys.end());
    for (int64_t j = 0; j < model.k; ++j) ids.push_back(keys[j].second);
  }
  return ids;
}

// One layer with its weights on the GPU.
class TimedExperts {
 public:
  TimedExperts(const TimedModel& model, int64_t most)
      : model_(model),
        w1_(2 * model.e * 2 * model.i * model.n),
        w2_(2 * model.e * model.i * model.n),
        x_(2 * most * model.n),
        out_(2 * most * model.n),
        weights_(2 * most * model.k),
        workspace_(4 * OpFor(most).WorkspaceDims()[1]) {
    attention::FillRandom(kBF16, w1_.data(), model.e * 2 * model.i * model.n);
    attention::FillRandom(kBF16, w2_.data(), model.e * model.i * model.n);
    attention::FillRandom(kBF16, x_.data(), most * model.n);
    attention::FillRandom(kBF16, weights_.data(), most * model.k);
    attention::Require(cudaDeviceSynchronize());
  }

  void Time(int64_t tokens, bool zipf) const {
    using matmul::kRoutings;
    std::mt19937 random(static_cast<uint32_t>(tokens));
    std::vector<int64_t> all;
    double touched = 0.0;
    for (int i = 0; i < kRoutings; ++i) {
      const std::vector<int64_t> ids = RoutedIds(model_, tokens, zipf, random);
      std::vector<bool> is_there(model_.e, false);
      for (const int64_t id : ids) is_there[id] = true;
      touched += std::ranges::count(is_there, true);
      all.insert(all.end(), ids.begin(), ids.end());
    }
    const attention::DeviceIndices routings(all, false);
    const int64_t pairs = tokens * model_.k;
    FusedExperts op = OpFor(tokens);
    const auto with_ids = [&](int i) {
      op.ids.data = routings.n.data() + i * pairs;
      return op;
    };
    const double whole = matmul::MedianOfGraphs(
        [&](int i, const CudaContext& context) { attention::Require(with_ids(i).Run(context)); });
    // What the products take, with each routing's order of pairs.
    const attention::DeviceArray<int32_t> sizes(kRoutings * model_.e), rows(kRoutings * pairs);
    std::vector<ExpertsPass> passes;
    for (int i = 0; i < kRoutings; ++i) {
      attention::Require(with_ids(i).Run(attention::ContextOn()));
      const FusedExperts call = with_ids(i);
      attention::Require(ExpertsPasses(call).ForEach([&](ExpertsPass pass) {
        Copy(sizes.data() + i * model_.e, pass.sizes, model_.e);
        Copy(rows.data() + i * pairs, pass.rows, pass.pairs());
        pass.sizes = sizes.data() + i * model_.e;
        pass.rows = rows.data() + i * pairs;
        passes.push_back(pass);
        return Status();
      }));
    }
    const auto product = [&](bool first) {
      return matmul::MedianOfGraphs([&](int i, const CudaContext& context) {
        const ExpertsPass& pass = passes[i];
        attention::Require(
            matmul::Run(first ? pass.FirstProduct() : pass.SecondProduct(), context));
      });
    };
    const double once = product(true), back = product(false);
    const double elements = 3.0 * model_.n * model_.i;
    const double bytes = 2.0 * (touched / kRoutings * elements + 2.0 * tokens * model_.n);
    const double floor =
        std::max(bytes / matmul::kBytesPerUs, 2.0 * pairs * elements / matmul::kFlopsPerUs);
    std::printf(
        "%-14s %5ld tokens %-8s floor %7.1f us: %7.1f us %.2fx; products %.1f + %.1f, "
        "the rest %.1f\n",
        model_.name, long(tokens), zipf ? "zipf" : "balanced", floor, whole, whole / floor, once,
        back, whole - once - back);
    std::fflush(stdout);
  }

 private:
  static void Copy(int32_t* to, const int32_t* from, int64_t count) {
    attention::Require(cudaMemcpy(to, from, 4 * count, cudaMemcpyDeviceToDevice));
  }
  static TensorView View(const void* data, DType dtype, std::vector<int64_t> dims) {
    TensorView view;
    attention::Require(MakeDense(const_cast<void*>(data), dtype, dims, view));
    return view;
  }
  FusedExperts OpFor(int64_t tokens) const {
    FusedExperts op;
    const auto& [name, e, k, n, i, activation] = model_;
    op.x = View(x_.data(), kBF16, {tokens, n});
    op.w1 = View(w1_.data(), kBF16, {e, 2 * i, n});
    op.w2 = View(w2_.data(), kBF16, {e, n, i});
    op.weights = View(weights_.data(), kBF16, {tokens, k});
    op.ids = View(nullptr, DType::kI32, {tokens, k});
    op.activation = activation;
    op.out = View(out_.data(), kBF16, {tokens, n});
    op.workspace = View(workspace_.data(), kF32, {1, static_cast<int64_t>(op.WorkspaceDims()[1])});
    return op;
  }

  const TimedModel& model_;
  attention::DeviceArray<char> w1_, w2_, x_, out_, weights_, workspace_;
};

// `only` > 0: this number of tokens alone; models whose names begin with `name`.
inline void TimeAll(int64_t only, std::string_view name) {
  for (const TimedModel& model : kModels) {
    if (!std::string_view(model.name).starts_with(name)) continue;
    const TimedExperts timed(model, only ? only : 4096);
    for (const int64_t tokens : {1, 16, 64, 512, 4096}) {
      if (only && tokens != only) continue;
      for (const bool zipf : {false, true}) timed.Time(tokens, zipf);
    }
  }
}

}  // namespace intarsia
