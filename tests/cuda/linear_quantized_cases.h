// Random products with weights in codes: operands on the host, and the f64 reference, which reads
// codes bit by bit as matmul/quantized.h lays them out.
#pragma once
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "src/core/cuda/vec.cuh"
#include "src/core/dispatch.h"
#include "src/matmul/quantized.h"

namespace intarsia::matmul {

struct QuantizedCase {
  DType dtype = kBF16, out = kBF16;
  Format format = Format::kU4;
  int64_t m = 1, c = 1, k = 128, group = 128;
  DType scale = kF16, zero = DType::kOther, outer = DType::kOther;  // kOther: there are none
  int64_t outers = 0;                                               // 0: one for all rows,
  int64_t outer_tiles = 0;  // or for so many tiles, where matrices lie one below the other
  bool points = true, bias = false;
  int64_t shift = 0;                                      // elements by which x is off 16 bytes
  int power = 0;                                          // x, or y = x normed, is up to 2^power
  bool gated = false, by_gelu = false, residual = false;  // by silu, or by gelu_tanh
  DType norm = DType::kOther;                             // of its weights; kOther: x is as it is

  int64_t groups() const { return CeilDiv(k, group); }
  // Outer factors of so many columns, or one, or none.
  void DrawOuters(std::mt19937& random) {
    outer = std::initializer_list<DType>{DType::kOther, kF32, kF16, kBF16}.begin()[random() % 4];
    outers = 0;
    if (outer == DType::kOther || random() % 3 == 0) return;
    do outers = 1 + random() % groups();
    while (groups() % outers != 0);
  }
  int64_t results() const { return c * kTileRows / (gated ? 2 : 1); }
  std::string Name() const {
    return Text(intarsia::Name(dtype), " format ", static_cast<int>(format), " m ", m, " c ", c,
                " k ", k, " group ", group, " scales ", intarsia::Name(scale), " zeros ",
                intarsia::Name(zero), points ? " points" : " minimums", " outers ",
                intarsia::Name(outer), " ", outers, bias ? " bias" : "", " shift ", shift,
                " power ", power, gated ? by_gelu ? " gelu" : " silu" : "",
                residual ? " residual" : "", " norm ", intarsia::Name(norm));
  }
  // Other formats that warpgroups take: those of files; narrow groups, mxfp4 and codes of 8 bits;
  // with more than 8 rows other minimums and e4m3.
  void DrawOthers(std::mt19937& random) {
    c = std::min<int64_t>(c, 290);
    if (random() % 2) return DrawGguf(random);
    if (random() % 4 == 0) return dtype = kBF16, DrawNvFp4(random);
    constexpr Format kFormats[] = {Format::kU4, Format::kU4B8, Format::kE2M1, Format::kI8,
                                   Format::kE4M3};
    format = kFormats[random() % 5];
    if (format == Format::kU4B8 || format == Format::kE2M1 || format == Format::kI8)
      m = std::max<int64_t>(m, 2);
    else
      m = std::max<int64_t>(m, 9), k = std::min<int64_t>(k, 2048);
    points = false;
    zero = format == Format::kU4 ? (random() % 2 ? kF16 : kF32) : DType::kOther;
    if (format == Format::kE2M1)
      dtype = kBF16, group = 32, scale = DType::kF8E8M0;
    else if (format != Format::kE4M3)
      group = 32 << random() % 3;
  }
  // Q4_1, Q4_K, Q5_0, Q5_1, Q5_K or Q6_K, as they lie in GGUF's files; of multiples of 128 columns.
  void DrawGguf(std::mt19937& random) {
    const bool has_outers = random() % 2;
    constexpr Format kFormats[] = {Format::kU4, Format::kU5, Format::kU5B16, Format::kU6B32};
    format = kFormats[random() % 4];
    const bool minimums = format == Format::kU4 || format == Format::kU5;
    group = format == Format::kU6B32 ? 16 : random() % 2 ? 32 : 32 << random() % 4, points = false;
    scale = kF16, zero = minimums ? kF16 : DType::kOther;
    outer = DType::kOther, outers = 0;
    if (format == Format::kU6B32) scale = kI8;
    if (minimums && has_outers) scale = zero = DType::kU8;
    if (scale == kF16) return;
    outer = kF16;
    do outers = groups() / (1 + random() % groups());
    while (groups() % outers != 0 || groups() / outers * group % 128 != 0);
  }
  bool is_nvfp4() const { return format == Format::kE2M1 && scale == kF8E4M3 && group == 16; }
  void DrawNvFp4(std::mt19937& random) {
    format = Format::kE2M1, group = 16, scale = kF8E4M3, zero = DType::kOther, points = false;
    outer = std::initializer_list<DType>{DType::kOther, kF32, kF16, kBF16}.begin()[random() % 4];
    outers = static_cast<int64_t>(random() % 2);
  }
  // What a layer may end with.
  void DrawEnd(std::mt19937& random) {
    // f16 holds a gate times an up of short rows in 4 bits, unless zeros make these larger.
    const bool larger = zero == kI8 || (zero == DType::kU8 && !points);
    const bool fits = dtype != kF16 || (k <= 384 && BitsOf(format) == 4 && !larger);
    gated = c % 2 == 0 && fits && random() % 2;
    if (gated) out = dtype, by_gelu = random() % 2;
    residual = !gated && random() % 2;
  }
};

inline QuantizedCase RandomQuantizedCase(std::mt19937& random) {
  const auto pick = [&](std::initializer_list<int64_t> values) {
    return values.begin()[random() % values.size()];
  };
  const auto type = [&](std::initializer_list<DType> types) {
    return types.begin()[random() % types.size()];
  };
  QuantizedCase c;
  c.dtype = type({kF32, kF16, kBF16});
  c.out = random() % 3 && c.dtype != kF16 ? c.dtype : kF32;  // f16's range is too small
  c.format = static_cast<Format>(random() % 8);
  c.m = pick({1, 2, 5, 8, 9, 16, 17, 33, 70, 150});
  c.c = pick({1, 2, 3, 8, 9, 33, 70});
  c.k = pick({16, 32, 64, 96, 100, 128, 136, 256, 320, 576, 1000, 2048, 4104});
  c.group = pick({16, 32, 32, 64, 96, 128, 128, 160, 256, 4128});
  const auto factor = {kF32, kF16, kBF16, DType::kU8, kI8};
  c.scale = type({kF32, kF16, kBF16, DType::kU8, kI8, kF8E4M3, DType::kF8E8M0});
  if (random() % 2) c.zero = type(factor);
  if (random() % 3 == 0) {
    c.outer = type({kF32, kF16, kBF16});
    for (int64_t o = c.groups(); o > 0 && !c.outers; --o)
      if (c.groups() % o == 0 && random() % 2) c.outers = o;
  }
  c.points = random() % 2;
  c.bias = random() % 2;
  c.residual = random() % 4 == 0;
  if (random() % 5 == 0) c.shift = pick({1, 4, 3});
  if (random() % 2) return c;
  // Half of the cases are such that the kernels for files as they are take them.
  c.dtype = type({kF16, kBF16});
  c.out = c.dtype == kBF16 && random() % 2 ? kBF16 : kF32;
  c.format = std::initializer_list<Format>{Format::kU4, Format::kU4B8, Format::kE2M1, Format::kI8,
                                           Format::kE4M3}
                 .begin()[random() % 5];
  c.k = pick({32, 96, 128, 136, 320, 576, 1024, 2048, 4104});
  c.group = pick({32, 64, 96, 128, 128, 256, 4224});
  c.outer = DType::kOther;
  c.outers = c.shift = 0;
  if (random() % 2) return c;
  if (random() % 2) {  // few rows, with all that a layer can have before them and behind them
    c.m = pick({1, 1, 2, 5, 8});
    if (random() % 2) c.c = pick({2, 8, 70, 250, 1100, 2200});
    if (c.k < 128) c.k = pick({128, 320, 576});
    c.scale = c.format == Format::kE2M1 ? DType::kF8E8M0 : type({kF32, kF16, kBF16});
    if (c.format != Format::kU4) c.zero = DType::kOther;
    if (c.format == Format::kE2M1 && random() % 2) c.DrawNvFp4(random);
    c.DrawEnd(random);
    if (random() % 2) c.norm = type({kF32, c.dtype});
    // Beyond what raised.cuh takes at first, and beyond what it takes then.
    if (c.dtype == kBF16 && !c.gated) c.power = static_cast<int>(pick({0, 0, 40, 90}));
    if (c.k <= 384 && BitsOf(c.format) == 4) c.out = type({c.out, c.dtype});
    return c;
  }
  // Some of those are such that sm90/warpgroups.cuh takes them.
  c.points = random() % 2;
  c.format = c.points ? Format::kU4 : Format::kU4B8;
  c.m = pick({1, 3, 4, 8, 9, 16, 17, 33, 70});
  c.c = c.m < 4 ? 1100 : pick({250, 257, 290});
  // With the longest one, up to 16 rows are summed in parts.
  c.k = c.m >= 4 && c.m <= 16 ? pick({640, 1664, 2048, 9216}) : pick({640, 1280, 1664, 2048});
  c.group = pick({128, 128, 256, 640, 2048});
  c.scale = type({kF32, kF16, kBF16});
  c.zero = c.points ? DType::kU8 : DType::kOther;
  if (random() % 2) c.DrawOthers(random);
  if (random() % 2) c.DrawEnd(random);
  return c;
}

// An array of elements of any type that factors have, and what they are.
class FactorArray {
 public:
  FactorArray() = default;
  FactorArray(DType dtype, int64_t size, double low, double high, std::mt19937& random)
      : dtype_(dtype), bits_(size * Bytes(dtype)), values_(size) {
    for (int64_t i = 0; i < size; ++i)
      Set(i, static_cast<float>(low + (high - low) * (random() % 4096) / 4096.0));
  }
  void Set(int64_t i, float x) {
    const auto put = [&](auto bits, float value) {
      std::memcpy(&bits_[i * sizeof bits], &bits, sizeof bits);
      values_[i] = value;
    };
    switch (dtype_) {
      case DType::kF16:
        return put(__half(x), static_cast<float>(__half(x)));
      case DType::kBF16:
        return put(__nv_bfloat16(x), static_cast<float>(__nv_bfloat16(x)));
      case DType::kF8E4M3:
        return put(__nv_fp8_e4m3(x), static_cast<float>(__nv_fp8_e4m3(x)));
      case DType::kU8:
        return put(static_cast<uint8_t>(std::abs(x) * 15), std::floor(std::abs(x) * 15));
      case DType::kI8:
        return put(static_cast<int8_t>(x * 31), std::trunc(x * 31));
      case DType::kF8E8M0: {
        // Some are the smallest one, f32's subnormal number.
        const int exponent = std::abs(x) < 0.02f ? -127 : static_cast<int>(std::abs(x) * 6) - 4;
        return put(static_cast<uint8_t>(127 + exponent), std::ldexp(1.0f, exponent));
      }
      default:
        return put(x, x);
    }
  }
  bool empty() const { return bits_.empty(); }
  const std::vector<char>& bits() const { return bits_; }
  double operator[](int64_t i) const { return values_[i]; }

 private:
  DType dtype_ = kF32;
  std::vector<char> bits_;
  std::vector<float> values_;
};

// Of powers of two in one matrix: some above 1, which few matrices have; none; or some that are the
// smallest ones. Kernels take other ways by them. nvfp4's have all of e4m3's range, or are its
// smallest ones.
inline double LeastScale(const QuantizedCase& c, std::mt19937& random) {
  if (c.is_nvfp4()) return 0.0;
  return c.scale == DType::kF8E8M0 && random() % 3 == 0 ? 0.01 : 0.1;
}
inline double MostScale(const QuantizedCase& c, std::mt19937& random) {
  if (c.is_nvfp4()) return std::array{1.0, 0.03, c.dtype == kF16 ? 1.0 : 448.0}[random() % 3];
  return c.scale == DType::kF8E8M0 && random() % 3 != 0 ? 0.8 : 1.0;
}

// Of f16 or bf16.
inline double RoundedTo(DType dtype, double x) {
  if (dtype == kF16) return static_cast<float>(__half(static_cast<float>(x)));
  return static_cast<float>(__nv_bfloat16(static_cast<float>(x)));
}

struct QuantizedOperands {
  QuantizedOperands(const QuantizedCase& c, std::mt19937& random)
      : c(c),
        x(c.dtype, c.m * c.k + c.shift, -MostOf(c.norm == DType::kOther),
          MostOf(c.norm == DType::kOther), random),
        packed(c.c * CeilDiv(c.k, kBlockColumns) * BitsOf(c.format) * kLineBytes),
        scales(c.scale, c.c * c.groups() * kTileRows, LeastScale(c, random), MostScale(c, random),
               random) {
    // Rows do not depend on each other, however large some are.
    if (c.power > 0 && c.norm == DType::kOther)
      for (int64_t i = 0; i < c.m * c.k; ++i)
        if (i / c.k % 2) x.Set(c.shift + i, static_cast<float>(random() % 4096) / 2048 - 1);
    for (char& byte : packed) byte = static_cast<char>(random());
    if (c.format == Format::kE4M3)
      for (char& byte : packed) byte = (byte & 0x7f) == 0x7f ? char{1} : byte;
    if (c.zero != DType::kOther)
      zeros = FactorArray(c.zero, c.c * c.groups() * kTileRows, -1, 1, random);
    if (c.bias) bias = FactorArray(c.dtype, c.c * kTileRows, -1, 1, random);
    if (c.residual) residual = FactorArray(c.dtype, c.m * c.results(), -1, 1, random);
    if (c.norm != DType::kOther)
      norm = FactorArray(c.norm, c.k, -MostOf(true), MostOf(true), random);
    TakeRows();
    if (c.outer == DType::kOther) return;
    const int64_t alone = c.outer_tiles ? c.c / c.outer_tiles : 1;
    const int64_t size = c.outers ? c.c * c.outers * kTileRows : alone;
    outer_scales = FactorArray(c.outer, size, 0.1, 1, random);
    if (!zeros.empty() && !c.points) outer_zeros = FactorArray(c.outer, size, -1, 1, random);
  }

  // What the code of a row and column of the weights stands for.
  double Number(int64_t row, int64_t column) const {
    const int64_t bits = BitsOf(c.format), blocks = CeilDiv(c.k, kBlockColumns);
    const int64_t block = (row / kTileRows * blocks + column / kBlockColumns) * bits * kLineBytes;
    const int at = static_cast<int>(column % kBlockColumns);
    const auto word = [&](int64_t line) {
      uint32_t found;
      std::memcpy(&found, &packed[block + line * kLineBytes + row % kTileRows * 4], 4);
      return found;
    };
    if (bits == 8) {
      const auto code = static_cast<uint8_t>(word(at / 4) >> 8 * (at % 4));
      if (c.format == Format::kI8) return static_cast<int8_t>(code);
      __nv_fp8_e4m3 number;
      std::memcpy(&number, &code, 1);
      return static_cast<float>(number);
    }
    int code = word(at / 8) >> 4 * (at % 8) & 15;
    if (bits == 5) code |= (word(4) >> at & 1) << 4;
    if (bits == 6) code |= (word(4 + at / 16) >> 2 * (at % 16) & 3) << 4;
    if (c.format == Format::kE2M1) {
      constexpr double kSizes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
      return code & 8 ? -kSizes[code & 7] : kSizes[code];
    }
    return code - (c.format == Format::kU4B8    ? 8
                   : c.format == Format::kU5B16 ? 16
                   : c.format == Format::kU6B32 ? 32
                                                : 0);
  }
  // A row of the weights; `size`: of what is added up for each of them.
  void Row(int64_t row, std::vector<double>& w, std::vector<double>& size) const {
    for (int64_t i = 0; i < c.k; ++i) {
      const int64_t group = i / c.group, tile = row / kTileRows, in_tile = row % kTileRows;
      const int64_t at = (tile * c.groups() + group) * kTileRows + in_tile;
      const auto times = [&](const FactorArray& outer) {
        if (outer.empty()) return 1.0;
        if (!c.outers) return outer[c.outer_tiles ? tile / c.outer_tiles : 0];
        const int64_t of = group / (c.groups() / c.outers);
        return outer[(tile * c.outers + of) * kTileRows + in_tile];
      };
      const double scale = scales[at] * times(outer_scales), number = Number(row, i);
      double zero = zeros.empty() ? 0.0 : zeros[at] * times(outer_zeros);
      if (c.points) zero *= -scale;
      w[i] = scale * number + zero;
      size[i] = std::abs(scale * number) + std::abs(zero);
    }
  }

  static constexpr float kEps = 0.01f;  // of the norm

  const QuantizedCase c;
  FactorArray x;
  std::vector<char> packed;
  FactorArray scales, zeros, outer_scales, outer_zeros, bias, residual, norm;
  std::vector<double> rows;  // what is multiplied, [m, k]: x, or normed and rounded

 private:
  double MostOf(bool has_power) const { return has_power ? std::ldexp(1.0, c.power) : 1.0; }
  void TakeRows() {
    rows.resize(c.m * c.k);
    for (int64_t i = 0; i < c.m; ++i) {
      double squares = 0.0;
      for (int64_t j = 0; j < c.k; ++j) squares += std::pow(x[c.shift + i * c.k + j], 2);
      for (int64_t j = 0; j < c.k; ++j) {
        const double number = x[c.shift + i * c.k + j];
        rows[i * c.k + j] =
            norm.empty() ? number
                         : RoundedTo(c.dtype, number / std::sqrt(squares / c.k + kEps) * norm[j]);
      }
    }
  }
};

// A result, and what it may be off by.
struct Wanted {
  double value = 0.0, allowed = 0.0;
};

// Row `row` of x times a row of w, whose numbers are `w`, made of parts of `size`.
inline Wanted SumOf(const QuantizedOperands& o, int64_t row, int64_t column,
                    const std::vector<double>& w, const std::vector<double>& size) {
  const QuantizedCase& c = o.c;
  double want = 0.0, sum = 0.0, most = 0.0;
  for (int64_t j = 0; j < c.k; ++j) {
    const double x = o.rows[row * c.k + j];
    want += x * w[j];
    sum += std::abs(x) * size[j];
    most = std::max(most, std::abs(x) * size[j]);
  }
  // Sums of products are f32, with a tensor core's truncation. Codes in bf16 may keep the 128 that
  // their mantissa adds to them until a group's sum is complete.
  const double precision = c.dtype == kF32 ? 0x1p-20 : 0x1p-17;
  const double bias = o.bias.empty() ? 0.0 : o.bias[column];
  // Numbers close to the middle of two are rounded to either.
  const double normed = o.norm.empty() ? 0.0 : (c.dtype == kF16 ? 0x1p-9 : 0x1p-6) * most;
  return {want + bias, precision * (sum + std::abs(bias)) + normed};
}

// silu(gate) up or gelu_tanh(gate) up, after all three are rounded.
inline Wanted Gated(const Wanted& gate, const Wanted& up, bool by_gelu, double rounding) {
  const double slope =
      by_gelu ? std::sqrt(8.0 / M_PI) * (1.0 + 0.044715 * gate.value * gate.value) : 1.0;
  const double act = gate.value / (1.0 + std::exp(-gate.value * slope));
  const auto off = [&](const Wanted& x) { return x.allowed + rounding * std::abs(x.value); };
  // The slope of both is at most 1.13.
  const double act_off = 1.13 * off(gate) + rounding * std::abs(act);
  return {act * up.value, act_off * (std::abs(up.value) + off(up)) + std::abs(act) * off(up)};
}

// The worst error of results, as a share of what is allowed; NaN where one is missing.
inline double WorstError(const QuantizedOperands& o, const std::vector<float>& out) {
  const QuantizedCase& c = o.c;
  const double rounding = c.out == kF32 ? 0x1p-23 : c.out == kF16 ? 0x1p-10 : 0x1p-7;
  const int64_t n = c.results();
  std::vector<double> w(c.k), size(c.k);
  std::vector<Wanted> gates(c.m);
  double worst = 0.0;
  for (int64_t column = 0; column < n; ++column) {
    if (c.gated) {
      o.Row(column, w, size);
      for (int64_t i = 0; i < c.m; ++i) gates[i] = SumOf(o, i, column, w, size);
    }
    const int64_t of_w = c.gated ? n + column : column;
    o.Row(of_w, w, size);
    for (int64_t i = 0; i < c.m; ++i) {
      Wanted want = SumOf(o, i, of_w, w, size);
      if (c.gated) want = Gated(gates[i], want, c.by_gelu, rounding);
      if (c.residual) want.value += o.residual[i * n + column];
      const double allowed = want.allowed + rounding * std::abs(want.value) + 1e-30;
      const double error = std::abs(out[i * n + column] - want.value) / allowed;
      if (!(error <= worst)) worst = error;
      if (std::isnan(error)) return error;
    }
  }
  return worst;
}

}  // namespace intarsia::matmul
