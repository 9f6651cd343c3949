// Times fused_experts_quantized for layers of models, bf16, in a captured graph of calls with
// different routings, so that they touch different weights. Floor: the codes and factors of the
// experts that have a token, once, at the memory's bandwidth.
#pragma once
#include <set>

#include "src/ops/fused_experts_quantized/fused_experts_quantized.h"
#include "tests/cuda/fused_experts_time.cuh"
#include "tests/cuda/linear_quantized_time.cuh"

namespace intarsia {

struct TimedCodes {
  const char *name, *format;
  int64_t group;
  DType scale;
  int64_t outer_columns = 0;  // that share outer factors, in f16; 0: there are none
  bool minimums = false;      // of the scales' type
};
inline constexpr TimedCodes kTimedCodes[] = {{"int4, 128", "u4b8", 128, kF16},
                                             {"mxfp4", "e2m1", 32, DType::kF8E8M0},
                                             {"fp8, 128", "e4m3", 128, kF32},
                                             {"int8, 128", "i8", 128, kF16},
                                             {"Q4_0", "u4b8", 32, kF16},
                                             {"Q8_0", "i8", 32, kF16},
                                             {"nvfp4", "e2m1", 16, kF8E4M3, 1 << 20},
                                             {"nvfp4, f32", "e2m1", 16, kF32},
                                             {"Q4_K", "u4", 32, DType::kU8, 256, true},
                                             {"Q4_1", "u4", 32, kF16, 0, true},
                                             {"Q5_0", "u5b16", 32, kF16},
                                             {"Q5_1", "u5", 32, kF16, 0, true},
                                             {"Q5_K", "u5", 32, DType::kU8, 256, true},
                                             {"Q6_K", "u6b32", 16, DType::kI8, 256}};

// Bytes whose bits make small numbers of every type.
inline void FillCodes(void* to, int64_t bytes) {
  matmul::FillBytes<<<1024, 256>>>(static_cast<uint32_t*>(to), bytes / 4, 0x37773777u);
}

class TimedQuantizedExperts {
 public:
  TimedQuantizedExperts(const TimedModel& model, const TimedCodes& codes, int64_t most)
      : model_(model),
        codes_(codes),
        w1_(Codes(2 * model.i, model.n)),
        w1_scales_(Scales(2 * model.i, model.n)),
        w1_outers_(Outers(2 * model.i, model.n)),
        w2_(Codes(model.n, model.i)),
        w2_scales_(Scales(model.n, model.i)),
        w2_outers_(Outers(model.n, model.i)),
        x_(2 * most * model.n),
        out_(2 * most * model.n),
        weights_(2 * most * model.k),
        workspace_(4 * OpFor(most).WorkspaceDims()[1]) {
    FillCodes(w1_.data(), Codes(2 * model.i, model.n));
    FillCodes(w2_.data(), Codes(model.n, model.i));
    FillScales(w1_scales_.data(), Scales(2 * model.i, model.n));
    FillScales(w2_scales_.data(), Scales(model.n, model.i));
    FillCodes(w1_outers_.data(), Outers(2 * model.i, model.n));
    FillCodes(w2_outers_.data(), Outers(model.n, model.i));
    attention::FillRandom(kBF16, x_.data(), most * model.n);
    attention::FillRandom(kBF16, weights_.data(), most * model.k);
    attention::Require(cudaDeviceSynchronize());
  }

  void Time(int64_t tokens) const {
    using matmul::kRoutings;
    std::mt19937 random(static_cast<uint32_t>(tokens));
    std::vector<int64_t> all;
    double touched = 0.0;
    for (int i = 0; i < kRoutings; ++i) {
      const std::vector<int64_t> ids = RoutedIds(model_, tokens, false, random);
      touched += static_cast<double>(std::set<int64_t>(ids.begin(), ids.end()).size());
      all.insert(all.end(), ids.begin(), ids.end());
    }
    const attention::DeviceIndices routings(all, false);
    FusedExpertsQuantized op = OpFor(tokens);
    const double us = matmul::MedianOfGraphs([&](int i, const CudaContext& context) {
      op.ids.data = routings.n.data() + i * tokens * model_.k;
      attention::Require(op.Run(context));
    });
    const double each =
        static_cast<double>(OfMatrices(2 * model_.i, model_.n) + OfMatrices(model_.n, model_.i)) /
        static_cast<double>(model_.e);
    const double floor = touched / kRoutings * each / matmul::kBytesPerUs;
    std::printf("%-14s %-9s %5ld tokens: floor %7.1f us: %7.1f us %.2fx\n", model_.name,
                codes_.name, long(tokens), floor, us, us / floor);
    std::fflush(stdout);
  }

 private:
  int64_t Bits() const { return matmul::BitsOf(*matmul::FormatOf(codes_.format)); }
  int64_t Codes(int64_t rows, int64_t columns) const {
    return model_.e * rows * RoundUp<int64_t>(columns, 32) * Bits() / 8;
  }
  int64_t Groups(int64_t columns) const { return CeilDiv(columns, codes_.group); }
  int64_t Scales(int64_t rows, int64_t columns) const {
    return model_.e * rows * Groups(columns) * Bytes(codes_.scale);
  }
  int64_t Outers(int64_t rows, int64_t columns) const {
    return codes_.outer_columns ? 2 * model_.e * rows * CeilDiv(columns, codes_.outer_columns) : 0;
  }
  int64_t OfMatrices(int64_t rows, int64_t columns) const {
    return Codes(rows, columns) +
           (codes_.minimums ? 2 : 1) * (Scales(rows, columns) + Outers(rows, columns));
  }
  // Powers of two are like those of models: 0 would be the smallest number of f32.
  void FillScales(char* to, int64_t bytes) const {
    if (codes_.scale == DType::kF8E8M0)
      attention::Require(cudaMemset(to, 120, bytes));
    else
      FillCodes(to, bytes);
  }
  static TensorView View(const void* data, DType dtype, std::vector<int64_t> dims) {
    TensorView view;
    attention::Require(MakeDense(const_cast<void*>(data), dtype, dims, view));
    return view;
  }
  FusedExpertsQuantized OpFor(int64_t tokens) const {
    FusedExpertsQuantized op;
    const auto& [name, e, k, n, i, activation] = model_;
    const auto matrices = [&](const attention::DeviceArray<char>& from, int64_t rows,
                              int64_t size) {
      return View(from.data(), DType::kU8,
                  {e, rows / 16, CeilDiv<int64_t>(size, 32), Bits(), 16, 4});
    };
    const auto scales = [&](const attention::DeviceArray<char>& from, int64_t rows, int64_t size) {
      return View(from.data(), codes_.scale, {e, rows / 16, Groups(size), 16});
    };
    op.x = View(x_.data(), kBF16, {tokens, n});
    op.w1 = matrices(w1_, 2 * i, n), op.w1_scales = scales(w1_scales_, 2 * i, n);
    op.w2 = matrices(w2_, n, i), op.w2_scales = scales(w2_scales_, n, i);
    // Minimums are the scales again.
    if (codes_.minimums) op.w1_zeros = op.w1_scales, op.w2_zeros = op.w2_scales;
    if (codes_.outer_columns) {
      const auto outers = [&](const attention::DeviceArray<char>& from, int64_t rows,
                              int64_t size) {
        return View(from.data(), kF16, {e, rows / 16, CeilDiv(size, codes_.outer_columns), 16});
      };
      op.w1_outer_scales = outers(w1_outers_, 2 * i, n);
      op.w2_outer_scales = outers(w2_outers_, n, i);
      if (codes_.minimums)
        op.w1_outer_zeros = op.w1_outer_scales, op.w2_outer_zeros = op.w2_outer_scales;
    }
    op.zeros_are = "minimums";
    op.weights = View(weights_.data(), kBF16, {tokens, k});
    op.ids = View(nullptr, DType::kI32, {tokens, k});
    op.format = codes_.format;
    op.w1_group = op.w2_group = codes_.group;
    op.activation = activation;
    op.out = View(out_.data(), kBF16, {tokens, n});
    op.workspace = View(workspace_.data(), kF32, {1, static_cast<int64_t>(op.WorkspaceDims()[1])});
    return op;
  }

  const TimedModel& model_;
  const TimedCodes& codes_;
  attention::DeviceArray<char> w1_, w1_scales_, w1_outers_, w2_, w2_scales_, w2_outers_, x_, out_,
      weights_, workspace_;
};

// `begin`: of the formats' names; `only`: tokens, or 0 for several numbers of them.
inline void TimeQuantizedExperts(std::string_view begin, int64_t only) {
  std::vector<int64_t> wanted{1, 2, 4, 8, 16, 64, 256, 2048};
  if (only > 0) wanted = {only};
  for (const TimedModel& model : std::span(kModels).first(2))
    for (const TimedCodes& codes : kTimedCodes) {
      const auto has = [&](int64_t columns) {
        return codes.outer_columns >= columns ||
               columns % std::max<int64_t>(codes.outer_columns, 1) == 0;
      };
      if (!std::string_view(codes.name).starts_with(begin) || !has(model.n) || !has(model.i))
        continue;
      const TimedQuantizedExperts timed(model, codes, std::max<int64_t>(only, 2048));
      for (const int64_t tokens : wanted) timed.Time(tokens);
    }
}

}  // namespace intarsia
