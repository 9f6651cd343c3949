// Checks the kernels of products of codes against f64 on random operands, one by one, then times
// them. Needs a GPU. Exits with 1 on a failure. Arguments: "check [cases]" and "time" ask for a
// part.
#include <array>
#include <functional>

#include "src/matmul/cuda/scaled_choice.h"
#include "tests/cuda/attention_batch.cuh"
#include "tests/cuda/linear_quantized_time.cuh"

namespace intarsia::matmul {
namespace {

using attention::Await;
using attention::ContextOn;
using attention::DeviceArray;
using attention::Require;

// How many scales a matrix has.
enum class Scales { kAll, kRows, kBlocks };

struct Case {
  DType dtype, out;
  int64_t m, n, k;
  Scales x, w;
  DType bias;         // kOther: none
  int64_t shift = 0;  // of x, in bytes
  std::string Text() const {
    return intarsia::Text(Name(dtype), " to ", Name(out), ", m=", m, " n=", n, " k=", k,
                          ", scales ", static_cast<int>(x), " ", static_cast<int>(w), ", shift ",
                          shift);
  }
};

Case RandomCase(std::mt19937& random) {
  const auto below = [&](int64_t most) { return static_cast<int64_t>(random() % most); };
  const auto of = [&](auto... values) {
    const std::common_type_t<decltype(values)...> all[] = {values...};
    return all[below(sizeof...(values))];
  };
  Case c;
  c.dtype = of(kF8E4M3, kI8), c.out = of(kBF16, kF16, kF32);
  c.m = of(below(17), 1 + below(64), 1 + below(400), int64_t{256});
  c.n = of(1 + below(300), 8 * (1 + below(60)), int64_t{384});
  c.k = of(below(300), 16 * (1 + below(80)), int64_t{1024});
  c.x = of(Scales::kAll, Scales::kRows, Scales::kBlocks);
  c.w = of(Scales::kAll, Scales::kRows, Scales::kBlocks);
  c.bias = of(DType::kOther, kF32, kBF16, kF16);
  c.shift = of(0, 0, 0, 1);
  return c;
}

// A matrix of codes, the numbers that they stand for, and their scales.
struct Matrix {
  std::vector<char> codes;
  std::vector<float> numbers, scales;
  BlockScales shape;  // without data

  Matrix(DType dtype, int64_t rows, int64_t k, Scales kind, int64_t block_rows, uint64_t seed) {
    attention::Normal normal(seed);
    codes.resize(rows * k), numbers.resize(rows * k);
    for (size_t i = 0; i < codes.size(); ++i) {
      if (dtype == kI8) {
        codes[i] = static_cast<char>(std::clamp(std::nearbyint(normal() * 40.0f), -128.0f, 127.0f));
        numbers[i] = codes[i];
      } else {
        const __nv_fp8_e4m3 x(normal() * 8.0f);
        std::memcpy(&codes[i], &x, 1);
        numbers[i] = static_cast<float>(x);
      }
    }
    const int64_t blocks = CeilDiv<int64_t>(k, kScaleBlock);
    if (kind == Scales::kRows) shape.row = 1;
    if (kind == Scales::kBlocks) shape = {nullptr, blocks, 1, block_rows};
    const int64_t count = kind == Scales::kAll    ? 1
                          : kind == Scales::kRows ? rows
                                                  : CeilDiv(rows, block_rows) * blocks;
    for (int64_t i = 0; i < count; ++i) scales.push_back(0.01f * (1.5f + std::tanh(normal())));
  }
  BlockScales WithData(const float* data) const {
    BlockScales all = shape;
    all.data = data;
    return all;
  }
};

struct Operands {
  Case c;
  Matrix x, w;
  attention::Elements bias;

  Operands(const Case& which, std::mt19937& random)
      : c(which),
        x(c.dtype, c.m, c.k, c.x, 1, random()),
        w(c.dtype, c.n, c.k, c.w, kScaleBlock, random()) {
    if (c.bias == DType::kOther) return;
    bias = attention::Elements(c.bias, c.n);
    for (int64_t j = 0; j < c.n; ++j) bias.Set(j, 0.1f * static_cast<float>(j % 7));
  }
};

// The largest error, where 1 is what is allowed: a rounding of the result, and of sums, of which
// Hopper's tensor cores keep 14 bits in fp8.
double WorstError(const Operands& o, const attention::Elements& out) {
  const Case& c = o.c;
  const BlockScales sx = o.x.WithData(o.x.scales.data()), sw = o.w.WithData(o.w.scales.data());
  const double of_out = c.out == kF32 ? 0.0 : c.out == kF16 ? 0x1p-11 : 0x1p-8;
  const double of_sums = c.dtype == kI8 ? 0x1p-19 : 0x1p-9;
  double worst = 0.0;
  // Of large cases some rows, of every tile and of the last one.
  const int64_t step = c.m > 500 ? 37 : 1;
  for (int64_t i = (c.m - 1) % step; i < c.m; i += step) {
    for (int64_t j = 0; j < c.n; ++j) {
      double sum = 0.0, squares = 0.0;
      for (int64_t b = 0; b * kScaleBlock < c.k; ++b) {
        double part = 0.0, part_squares = 0.0;
        for (int64_t l = b * kScaleBlock; l < std::min(c.k, (b + 1) * kScaleBlock); ++l) {
          const double product = double{o.x.numbers[i * c.k + l]} * o.w.numbers[j * c.k + l];
          part += product, part_squares += product * product;
        }
        const double scale = double{sx.At(i, b)} * sw.At(j, b);
        sum += scale * part, squares += scale * scale * part_squares;
      }
      if (c.bias != DType::kOther) sum += o.bias[j];
      const double allowed =
          of_out * std::abs(sum) + of_sums * std::sqrt(squares) + 0x1p-20 * std::abs(sum) + 1e-7;
      const double error = std::abs(out[i * c.n + j] - sum) / allowed;
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
  }
  return worst;
}

// Runs one kernel twice, between guards.
bool CheckKernel(const Operands& o, ScaledKernel kernel, double& worst) {
  constexpr size_t kGuard = 256;
  const Case& c = o.c;
  std::vector<char> shifted(c.shift, 0);
  shifted.insert(shifted.end(), o.x.codes.begin(), o.x.codes.end());
  const DeviceArray<char> x(shifted), w(o.w.codes), bias(o.bias.bits());
  const DeviceArray<float> sx(o.x.scales), sw(o.w.scales);
  const size_t size = c.m * c.n * Bytes(c.out);
  DeviceArray<char> out(size + 2 * kGuard);
  ScaledParams p{.dtype = c.dtype,
                 .out_dtype = c.out,
                 .x = x.data() + c.shift,
                 .w = w.data(),
                 .m = c.m,
                 .n = c.n,
                 .k = c.k,
                 .x_scales = o.x.WithData(sx.data()),
                 .w_scales = o.w.WithData(sw.data()),
                 .out = out.data() + kGuard};
  if (c.bias != DType::kOther) p.bias = bias.data(), p.bias_dtype = c.bias;
  const CudaContext context = ContextOn();
  if (!CanRun(kernel, p, *context.device)) return true;
  const auto run = [&] {
    out.Poison();
    Require(Launch(p, context, kernel));
    Await(nullptr, c.Text(), 20);
    return out.ToHost();
  };
  const std::vector<char> all = run();
  double error = run() == all ? 0.0 : INFINITY;
  for (size_t i = 0; i < kGuard; ++i)
    if (all[i] != char(0xff) || all[all.size() - 1 - i] != char(0xff)) error = INFINITY;
  error = std::max(
      error, WorstError(o, attention::Elements(c.out, std::vector<char>(all.begin() + kGuard,
                                                                        all.end() - kGuard))));
  worst = std::max(worst, error);
  if (error <= 1.0) return true;
  std::printf("FAILED %s: %s: error %.2f\n", std::string(Name(kernel)).c_str(), c.Text().c_str(),
              error);
  return false;
}

// Hopper's tiles of 256 rows, of which CTAs take one or two, and of 128, with ragged ends.
constexpr std::array<std::array<int64_t, 3>, 3> kLargeSizes = {
    {{1500, 2200, 272}, {2100, 3000, 144}, {1000, 1800, 272}}};

bool CheckAll(int cases) {
  std::mt19937 random(20261125);
  int failures = 0;
  double worst[3] = {};
  const auto check = [&](const Case& c) {
    const Operands o(c, random);
    for (const ScaledKernel kernel : kScaledKernels)
      if (kernel != ScaledKernel::kStream || c.m <= 500)
        failures += !CheckKernel(o, kernel, worst[static_cast<int>(kernel)]);
  };
  for (int i = 0; i < cases; ++i) check(RandomCase(random));
  for (const auto& [m, n, k] : kLargeSizes)
    for (const DType dtype : {kF8E4M3, kI8})
      for (const Scales scales : {Scales::kRows, Scales::kBlocks}) {
        Case c{dtype, scales == Scales::kRows ? kF32 : kBF16, m, n, k, scales, scales, kF16};
        check(c);
      }
  std::printf("%d cases, %d failures, worst error %.2f, %.2f, %.2f of the tolerance\n", cases,
              failures, worst[0], worst[1], worst[2]);
  return failures == 0;
}

// Copies of w, more than the L2 cache has, with codes of normal numbers: what a product's energy,
// and so the GPU's clock, depends on.
double TimeCall(DType dtype, int64_t m, int64_t n, int64_t k, Scales of_x, Scales of_w,
                ScaledKernel kernel) {
  const Matrix some(dtype, 1 << 13, 1 << 7, Scales::kAll, 1, 7);
  const int copies = static_cast<int>(2e8 / static_cast<double>(n * k)) + 1;
  const DeviceArray<char> w(n * k * copies), x(m * k), out(m * n * 2);
  const auto fill = [&](const DeviceArray<char>& to, int64_t size) {
    for (int64_t at = 0; at < size; at += static_cast<int64_t>(some.codes.size()))
      Require(cudaMemcpy(to.data() + at, some.codes.data(),
                         std::min<int64_t>(size - at, some.codes.size()), cudaMemcpyHostToDevice));
  };
  fill(w, n * k * copies), fill(x, m * k);
  const DeviceArray<float> scales(
      std::vector<float>(std::max(m, n) * CeilDiv<int64_t>(k, kScaleBlock), 0.01f));
  const auto shape = [&](Scales kind, int64_t rows) {
    if (kind == Scales::kAll) return BlockScales{scales.data()};
    if (kind == Scales::kRows) return BlockScales{scales.data(), 1};
    return BlockScales{scales.data(), CeilDiv<int64_t>(k, kScaleBlock), 1, rows};
  };
  ScaledParams p{.dtype = dtype,
                 .x = x.data(),
                 .m = m,
                 .n = n,
                 .k = k,
                 .x_scales = shape(of_x, 1),
                 .w_scales = shape(of_w, kScaleBlock),
                 .out = out.data()};
  return MedianOfQuantized(copies, [&](int i, const CudaContext& context) {
    p.w = w.data() + n * k * i;
    Require(Launch(p, context, kernel));
  });
}

void TimeAll() {
  struct Kind {
    const char* name;
    DType dtype;
    Scales x, w;
  };
  constexpr Kind kKinds[] = {{"fp8 blocks", kF8E4M3, Scales::kBlocks, Scales::kBlocks},
                             {"fp8 channels", kF8E4M3, Scales::kRows, Scales::kRows},
                             {"int8 channels", kI8, Scales::kRows, Scales::kRows}};
  struct Size {
    int64_t m, n, k;
  };
  const CudaContext context = ContextOn();
  for (const Kind& kind : kKinds) {
    for (const Size& s : {Size{4096, 4096, 7168}, Size{4096, 7168, 4096}, Size{4096, 28672, 4096},
                          Size{512, 4096, 4096}, Size{64, 28672, 4096}, Size{64, 4096, 4096},
                          Size{16, 28672, 4096}, Size{1, 28672, 4096}, Size{1, 4096, 4096}}) {
      for (const ScaledKernel kernel : kScaledKernels) {
        if (kernel == ScaledKernel::kStream && s.m > kMostStreamedRows) continue;
        if (kernel == ScaledKernel::kTiles && s.m > 64) continue;
        const double us = TimeCall(kind.dtype, s.m, s.n, s.k, kind.x, kind.w, kernel);
        std::printf("%-13s %4ld x %5ld x %4ld %-32s %7.1f us, %6.0f T/s, %4.2f TB/s of w\n",
                    kind.name, static_cast<long>(s.m), static_cast<long>(s.n),
                    static_cast<long>(s.k), std::string(Name(kernel)).c_str(), us,
                    2e-6 * static_cast<double>(s.m * s.n * s.k) / us,
                    1e-6 * static_cast<double>(s.n * s.k) / us);
        std::fflush(stdout);
      }
    }
  }
}

}  // namespace
}  // namespace intarsia::matmul

int main(int argc, char** argv) {
  using namespace intarsia::matmul;
  const std::string only = argc > 1 ? argv[1] : "";
  if ((only.empty() || only == "check") && !CheckAll(argc > 2 ? std::atoi(argv[2]) : 300)) return 1;
  if (only.empty() || only == "time") TimeAll();
  return 0;
}
