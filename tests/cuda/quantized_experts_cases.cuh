// Random layers of experts with weights in codes, checked against f64 with the op's roundings.
#pragma once
#include <array>

#include "src/ops/fused_experts_quantized/fused_experts_quantized.h"
#include "tests/cuda/attention_batch.cuh"
#include "tests/cuda/linear_quantized_cases.h"

namespace intarsia {

// All matrices of a layer, one below the other, decoded.
struct DecodedExperts {
  explicit DecodedExperts(const matmul::QuantizedOperands& o) : columns(o.c.k) {
    std::vector<double> row(columns), size(columns);
    for (int64_t i = 0; i < o.c.c * matmul::kTileRows; ++i) {
      o.Row(i, row, size);
      w.insert(w.end(), row.begin(), row.end());
    }
  }
  double Times(int64_t row, const double* x, double& size) const {
    double sum = 0.0;
    for (int64_t j = 0; j < columns; ++j) {
      sum += w[row * columns + j] * x[j];
      size += std::abs(w[row * columns + j] * x[j]);
    }
    return sum;
  }
  int64_t columns;
  std::vector<double> w;
};

inline double GatedBy(std::string_view activation, DType dtype, double gate, double up) {
  if (activation == "swigluoai") {
    gate = std::min(gate, 7.0), up = std::clamp(up, -7.0, 7.0);
    return gate / (1.0 + std::exp(-1.702 * gate)) * (up + 1.0);
  }
  const double slope =
      activation == "silu" ? 1.0 : 2.0 * std::sqrt(2.0 / M_PI) * (1.0 + 0.044715 * gate * gate);
  return matmul::RoundedTo(dtype, gate / (1.0 + std::exp(-gate * slope))) * up;
}

class QuantizedExpertsCase {
 public:
  explicit QuantizedExpertsCase(std::mt19937& random) {
    const auto pick = [&](std::initializer_list<int64_t> values) {
      return values.begin()[random() % values.size()];
    };
    t_ = pick({1, 1, 2, 5, 20}), k_ = pick({0, 1, 2, 3, 4, 6, 8}), e_ = pick({4, 9, 40});
    n_ = pick({16, 64, 144, 256}), i_ = pick({16, 24, 48, 96, 128, 272});
    activation_ = std::array{"silu", "gelu_tanh", "swigluoai"}[random() % 3];
    on_input_ = random() % 6 == 0;
    const bool of_file = random() % 4 == 0;  // both matrices in types of GGUF's
    if (of_file) n_ = 256, i_ = pick({128, 384});
    matmul::QuantizedCase c;
    c.format =
        std::array{matmul::Format::kU4, matmul::Format::kU4B8, matmul::Format::kE2M1,
                   matmul::Format::kI8, matmul::Format::kE4M3, matmul::Format::kU5}[random() % 6];
    c.group = pick({16, 32, 64, 96, 128}), c.bias = random() % 2;
    c.scale = std::array{kF16, kBF16, kF32}[random() % 3];
    if (c.format == matmul::Format::kE2M1) c.group = 32, c.scale = DType::kF8E8M0;
    if (c.format == matmul::Format::kE2M1 && random() % 2) c.DrawNvFp4(random);
    c.points = random() % 2;
    if (c.format == matmul::Format::kU4) c.zero = c.points ? DType::kU8 : c.scale;
    // f16 holds what swigluoai lets through, of codes around 0.
    const bool is_small = matmul::BitsOf(c.format) == 4 && (c.zero == DType::kOther || c.points);
    if (activation_ == "swigluoai" && is_small && !of_file && random() % 2) c.dtype = kF16;
    first_ = c, second_ = c;
    if (c.dtype != kF16 && random() % 3 == 0) DrawOtherFormat(second_, random);
    first_.c = e_ * 2 * i_ / 16, first_.k = n_, first_.m = t_;
    second_.c = e_ * n_ / 16, second_.k = i_, second_.m = 1;
    for (matmul::QuantizedCase* of : {&first_, &second_}) {
      of->outer_tiles = of->c / e_;
      if (of_file)
        of->DrawGguf(random);
      else if (random() % 3 == 0)
        of->DrawOuters(random);
    }
    if (random() % 4 == 0)
      for (int64_t id = 0; id < e_ + 2; ++id)
        map_.push_back(static_cast<int32_t>(random() % (e_ + 1)) - 1);
    for (int64_t p = 0; p < t_ * k_; ++p) {
      ids_.push_back(static_cast<int32_t>(random() % (e_ + 1)) - (random() % 8 == 0));
      weights_.push_back(static_cast<float>(random() % 256) / 256.0f);
    }
  }

  std::string Name() const {
    return Text("t ", t_, " k ", k_, " e ", e_, " n ", n_, " i ", i_, " ", activation_,
                on_input_ ? " on input" : "", map_.empty() ? ": " : " mapped: ", first_.Name(),
                "; ", second_.Name());
  }

  // The call without its data.
  FusedExpertsQuantized Op() const {
    FusedExpertsQuantized op;
    op.x = op.out = View(first_.dtype, {t_, n_});
    PutShapes(first_, op.w1, op.w1_scales, op.w1_zeros, op.w1_outer_scales, op.w1_outer_zeros);
    PutShapes(second_, op.w2, op.w2_scales, op.w2_zeros, op.w2_outer_scales, op.w2_outer_zeros);
    if (first_.bias) {
      op.w1_bias = View(first_.dtype, {e_, 2 * i_});
      op.w2_bias = View(first_.dtype, {e_, n_});
    }
    op.weights = View(kF32, {t_, k_}), op.ids = View(DType::kI32, {t_, k_});
    if (!map_.empty()) op.expert_map = View(DType::kI32, {static_cast<int64_t>(map_.size())});
    op.format = FormatName(first_.format), op.w2_format = FormatName(second_.format);
    op.w1_group = first_.group, op.w2_group = second_.group;
    op.zeros_are = first_.points ? "points" : "minimums";
    op.activation = activation_, op.apply_router_weight_on_input = on_input_;
    op.workspace = View(kF32, {1, op.WorkspaceDims()[1]});
    return op;
  }

  // The worst error, as a share of what is allowed.
  double Error(std::mt19937& random) const {
    using attention::DeviceArray;
    const matmul::QuantizedOperands w1(first_, random), w2(second_, random);
    const DeviceArray<char> x(w1.x.bits()), packed1(w1.packed), scales1(w1.scales.bits()),
        zeros1(w1.zeros.bits()), outer_scales1(w1.outer_scales.bits()),
        outer_zeros1(w1.outer_zeros.bits()), bias1(w1.bias.bits()), packed2(w2.packed),
        scales2(w2.scales.bits()), zeros2(w2.zeros.bits()), outer_scales2(w2.outer_scales.bits()),
        outer_zeros2(w2.outer_zeros.bits()), bias2(w2.bias.bits());
    const DeviceArray<float> weights(weights_);
    const DeviceArray<int32_t> ids(ids_), map(map_);
    DeviceArray<char> out(2 * t_ * n_);
    FusedExpertsQuantized op = Op();
    const DeviceArray<char> workspace(4 * op.workspace.size());
    const auto put = [](TensorView& view, const auto& array) {
      view.data = const_cast<void*>(static_cast<const void*>(array.data()));
    };
    put(op.x, x), put(op.out, out), put(op.workspace, workspace);
    const auto put_if = [&](Optional& view, const auto& array) {
      if (view) put(*view, array);
    };
    put(op.w1, packed1), put(op.w1_scales, scales1), put(op.w2, packed2),
        put(op.w2_scales, scales2);
    put_if(op.w1_outer_scales, outer_scales1), put_if(op.w1_outer_zeros, outer_zeros1);
    put_if(op.w2_outer_scales, outer_scales2), put_if(op.w2_outer_zeros, outer_zeros2);
    put_if(op.w1_zeros, zeros1), put_if(op.w2_zeros, zeros2);
    put(op.weights, weights), put(op.ids, ids);
    put_if(op.w1_bias, bias1), put_if(op.w2_bias, bias2), put_if(op.expert_map, map);
    out.Poison();
    attention::Require(op.Run(attention::ContextOn()));
    attention::Await(nullptr, Name(), 20);
    return Worst(w1, w2, attention::Elements(first_.dtype, out.ToHost()));
  }

 private:
  // Without zeros, so that those of the first matrix say what they are.
  static void DrawOtherFormat(matmul::QuantizedCase& c, std::mt19937& random) {
    constexpr matmul::Format kFormats[] = {matmul::Format::kU6B32, matmul::Format::kU5B16,
                                           matmul::Format::kI8, matmul::Format::kE2M1};
    c.format = kFormats[random() % 4], c.zero = DType::kOther;
    c.group = c.format == matmul::Format::kE2M1 ? 32 : 16 << random() % 4;
    c.scale = c.format == matmul::Format::kE2M1 ? DType::kF8E8M0 : kF16;
  }
  void PutShapes(const matmul::QuantizedCase& c, TensorView& codes, TensorView& scales,
                 Optional& zeros, Optional& outer_scales, Optional& outer_zeros) const {
    const int64_t tiles = c.c / e_;
    const auto factors = [&](DType dtype, int64_t groups) {
      return View(dtype, {e_, tiles, groups, 16});
    };
    codes =
        View(DType::kU8, {e_, tiles, CeilDiv<int64_t>(c.k, 32), matmul::BitsOf(c.format), 16, 4});
    scales = factors(c.scale, c.groups());
    if (c.zero != DType::kOther) zeros = factors(c.zero, c.groups());
    if (c.outer == DType::kOther) return;
    outer_scales = c.outers ? factors(c.outer, c.outers) : View(c.outer, {e_});
    if (zeros && !c.points) outer_zeros = outer_scales;
  }
  static std::string_view FormatName(matmul::Format format) {
    std::string_view names = matmul::kFormatNames;
    while (matmul::FormatOf(names.substr(0, names.find('|'))) != format)
      names.remove_prefix(names.find('|') + 1);
    return names.substr(0, names.find('|'));
  }
  static TensorView View(DType dtype, std::vector<int64_t> dims) {
    alignas(16) static char some;  // factors without data count as absent
    TensorView view;
    attention::Require(MakeDense(&some, dtype, dims, view));
    return view;
  }
  int64_t ExpertOf(int64_t pair) const {
    int64_t id = ids_[pair];
    if (!map_.empty()) id = id >= 0 && id < std::ssize(map_) ? map_[id] : -1;
    return id < e_ ? id : -1;
  }
  double Worst(const matmul::QuantizedOperands& w1, const matmul::QuantizedOperands& w2,
               const attention::Elements& out) const {
    const DecodedExperts up(w1), down(w2);
    const bool in_turn = activation_ == "swigluoai";
    const auto rounded = [&](double number) { return matmul::RoundedTo(first_.dtype, number); };
    double worst = 0.0;
    std::vector<double> x(n_), hidden(2 * i_), gated(i_), sum(n_), size(n_);
    for (int64_t t = 0; t < t_; ++t) {
      std::fill(sum.begin(), sum.end(), 0.0);
      std::fill(size.begin(), size.end(), 1e-30);
      for (int64_t j = 0; j < n_; ++j) x[j] = w1.x[t * n_ + j];
      for (int64_t j = 0; j < k_; ++j) {
        const int64_t e = ExpertOf(t * k_ + j);
        const double weight = weights_[t * k_ + j];
        if (e < 0) continue;
        for (int64_t c = 0; c < 2 * i_; ++c) {
          double ignored = 0.0;
          const double bias = first_.bias ? w1.bias[e * 2 * i_ + c] : 0.0;
          const double product = up.Times(e * 2 * i_ + c, x.data(), ignored);
          hidden[c] = on_input_ ? weight * rounded(product) + bias : rounded(product + bias);
        }
        for (int64_t c = 0; c < i_; ++c)
          gated[c] = rounded(GatedBy(activation_, first_.dtype, hidden[in_turn ? 2 * c : c],
                                     hidden[in_turn ? 2 * c + 1 : i_ + c]));
        for (int64_t c = 0; c < n_; ++c) {
          double of_sum = 0.0;
          const double bias = second_.bias ? w2.bias[e * n_ + c] : 0.0;
          const double product = rounded(down.Times(e * n_ + c, gated.data(), of_sum) + bias);
          sum[c] += (on_input_ ? 1.0 : weight) * product;
          size[c] += of_sum + std::abs(bias);
        }
      }
      for (int64_t c = 0; c < n_; ++c) {
        const double error = std::abs(out.values()[t * n_ + c] - sum[c]) / (0x1p-6 * size[c]);
        if (!(error <= worst)) worst = error;
        if (std::isnan(error)) return error;
      }
    }
    return worst;
  }

  int64_t t_, k_, e_, n_, i_;
  std::string_view activation_;
  bool on_input_;
  matmul::QuantizedCase first_, second_;
  std::vector<int32_t> ids_, map_;  // map_: empty, or the expert of each id
  std::vector<float> weights_;
};

inline bool CheckQuantizedExperts(int cases) {
  std::mt19937 random(20261125);
  int failures = 0;
  double worst = 0.0;
  for (int i = 0; i < cases; ++i) {
    const QuantizedExpertsCase layer(random);
    const double error = layer.Error(random);
    worst = std::max(worst, error);
    if (error <= 1.0) continue;
    ++failures;
    std::printf("FAILED %s: error %.2f\n", layer.Name().c_str(), error);
  }
  std::printf("%d layers of experts, %d failures, worst error %.2f of the tolerance\n", cases,
              failures, worst);
  return failures == 0;
}

}  // namespace intarsia
