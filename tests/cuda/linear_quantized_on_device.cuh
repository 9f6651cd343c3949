// The cases of linear_quantized_cases.h in a GPU's memory, or in what stands for it in the
// emulator.
#pragma once
#include "tests/cuda/attention_batch.cuh"
#include "tests/cuda/linear_quantized_cases.h"

namespace intarsia::matmul {

// The operands on the device, and the results with guards before and behind them.
class QuantizedOnDevice {
 public:
  explicit QuantizedOnDevice(const QuantizedOperands& o)
      : o_(o),
        x_(o.x.bits()),
        packed_(o.packed),
        scales_(o.scales.bits()),
        zeros_(o.zeros.bits()),
        outer_scales_(o.outer_scales.bits()),
        outer_zeros_(o.outer_zeros.bits()),
        bias_(o.bias.bits()),
        residual_(o.residual.bits()),
        norm_(o.norm.bits()),
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
    if (c.gated) p.gating = Gating::Of(c.by_gelu ? "gelu_tanh" : "silu", 0.0f, 0.0f);
    if (c.residual) p.residual = residual_.data();
    if (!o_.norm.empty()) p.norm = {norm_.data(), c.norm, QuantizedOperands::kEps};
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
  size_t Size() const { return o_.c.m * o_.c.results() * Bytes(o_.c.out); }
  Factors Of(const attention::DeviceArray<char>& inner, DType dtype,
             const attention::DeviceArray<char>& outer, const FactorArray& on_host) const {
    Factors factors{.data = inner.data(), .dtype = dtype};
    if (on_host.empty()) return factors;
    factors.outer = outer.data();
    factors.outer_dtype = o_.c.outer;
    factors.outers = o_.c.outers;
    return factors;
  }

  const QuantizedOperands& o_;
  attention::DeviceArray<char> x_, packed_, scales_, zeros_, outer_scales_, outer_zeros_, bias_,
      residual_, norm_, out_;
};

inline std::vector<float> Widened(DType dtype, const std::vector<char>& bits) {
  const attention::Elements elements(dtype, bits);
  return {elements.values(), elements.values() + bits.size() / Bytes(dtype)};
}

}  // namespace intarsia::matmul
