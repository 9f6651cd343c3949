// Checks attention/prefill.h against an f64 reference on random ragged batches, then times it.
// A program of its own, of this file, src/attention/prefill_*.cu and src/core; needs a GPU. Exits
// with 1 on a failure. An argument, "check [cases per d]" or "time", asks for one half of it.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "src/attention/prefill.h"
#include "tests/cuda/attention_batch.cuh"

namespace intarsia::attention {
namespace {

struct Errors {
  double out2 = 0.0, ref2 = 0.0, lse = 0.0;
  int64_t wrong = 0;  // elements not written, written against orders, or not finite
};

// Adds the errors of one row; `expected` is empty if the row must not have been touched.
template <class T>
void Compare(const T* out, float lse, const std::vector<double>& expected, double expected_lse,
             int64_t d, bool with_lse, Errors& e) {
  for (int64_t x = 0; x < d; ++x) {
    const double got = static_cast<float>(out[x]);
    if (expected.empty()) {
      e.wrong += !std::isnan(got);
    } else {
      e.wrong += !std::isfinite(got);
      e.out2 += (got - expected[x]) * (got - expected[x]);
      e.ref2 += expected[x] * expected[x];
    }
  }
  if (!with_lse) return;
  if (expected.empty())
    e.wrong += !std::isnan(lse);
  else if (expected_lse == -kInfinity)
    e.wrong += lse != -kInfinity;
  else
    e.lse = std::max(e.lse, std::isfinite(lse) ? std::abs(lse - expected_lse) : kInfinity);
}

template <class T>
bool Check(const Case& c, uint32_t seed, double& worst) {
  const Batch<T> batch(c, seed);
  OnDevice<T> device(batch);
  device.out.Poison();
  device.lse.Poison();
  Require(LaunchPrefill(device.p, CudaContext{}, {c.min_packed_rows, c.fill_padding}));
  Require(cudaDeviceSynchronize());
  const std::vector<T> out = device.out.ToHost();
  const std::vector<float> lse = device.lse.ToHost();

  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::vector<Errors> errors(threads);
  std::vector<std::thread> pool;
  for (int worker = 0; worker < threads; ++worker) {
    pool.emplace_back([&, worker] {
      std::vector<double> expected;
      for (int64_t row = worker; row < batch.t * c.h; row += threads) {
        const int64_t token = row / c.h, h = row % c.h;
        const int64_t seq =
            std::upper_bound(batch.cu_q.begin(), batch.cu_q.end(), token) - batch.cu_q.begin() - 1;
        double expected_lse = -kInfinity;
        expected.clear();
        if (seq >= batch.num_seqs()) {
          if (c.fill_padding) expected.assign(static_cast<size_t>(c.d), 0.0);
        } else if (c.len_q[seq] * (c.h / c.hk) >= c.min_packed_rows) {
          expected_lse = ReferenceRow(batch, seq, token - batch.cu_q[seq], h, expected);
        }
        Compare(&out[batch.offset + row * c.d], lse[h * batch.t + token], expected, expected_lse,
                c.d, c.with_lse, errors[worker]);
      }
    });
  }
  for (std::thread& thread : pool) thread.join();
  Errors e;
  for (const Errors& part : errors) {
    e.out2 += part.out2, e.ref2 += part.ref2, e.wrong += part.wrong;
    e.lse = std::max(e.lse, part.lse);
  }
  const double error = e.ref2 > 0 ? std::sqrt(e.out2 / e.ref2) : std::sqrt(e.out2);
  const double bound = c.dtype == kF32 ? 1e-5 : c.dtype == kF16 ? 1e-3 : 6e-3;
  const double lse_bound = c.dtype == kF32 ? 5e-5 : 2e-4;
  const bool passes = error <= bound && e.lse <= lse_bound && e.wrong == 0;
  worst = std::max(worst, error);
  if (!passes)
    std::printf("FAIL %s: error %.2e, lse %.2e, wrong %ld\n", Describe(c).c_str(), error, e.lse,
                long(e.wrong));
  return passes;
}

bool CheckAny(const Case& c, uint32_t seed, double& worst) {
  if (c.dtype == kF32) return Check<float>(c, seed, worst);
  return c.dtype == kF16 ? Check<__half>(c, seed, worst) : Check<__nv_bfloat16>(c, seed, worst);
}

Case RandomCase(DType dtype, int64_t d, std::mt19937& random) {
  const auto pick = [&](std::initializer_list<int64_t> values) {
    return values.begin()[random() % values.size()];
  };
  Case c{.dtype = dtype, .d = d};
  c.hk = pick({1, 2, 3});
  c.h = c.hk * pick({1, 3, 4, 8});
  for (int64_t b = pick({1, 2, 5, 12}); b > 0; --b) {
    c.len_q.push_back(pick({0, 1, 1, 2, 7, 33, 64, 100, 150}));
    c.len_k.push_back(random() % 3 ? c.len_q.back() + pick({0, 1, 50, 200})
                                   : pick({0, 1, 31, 64, 65, 129, 300}));
  }
  const int64_t b = static_cast<int64_t>(c.len_q.size());
  if (random() % 3 == 0) c.num_seqs = static_cast<int64_t>(random() % (b + 1));
  c.padding = pick({0, 0, 5, 140});
  c.page_size = pick({0, 0, 1, 3, 16, 64});
  if (random() % 4) c.window_right = pick({0, 0, 0, 5});
  if (random() % 3 == 0) c.window_left = pick({0, 1, 20, 100});
  if (random() % 4 == 0) c.softcap = static_cast<float>(pick({2, 30}));
  if (random() % 10 == 0) c.scale = -0.1f;
  c.wide = random() % 2;
  c.strided_q = random() % 3 == 0;
  c.combined = random() % 3 == 0;
  c.unaligned = random() % 6 == 0;
  c.with_lse = random() % 5 != 0;
  c.bad_page = c.page_size && random() % 2;
  c.layer = static_cast<int>(pick({-1, -1, 0, 1, 2}));
  c.min_packed_rows = pick({1, 1, 1, 65});
  c.fill_padding = random() % 4 != 0;
  return c;
}

bool CheckAll(int cases_per_dim) {
  std::mt19937 random(20261121);
  int count = 0, failures = 0;
  for (const DType dtype : {kF32, kF16, kBF16}) {
    double worst = 0.0;
    for (const int64_t d : {8, 24, 32, 40, 64, 80, 96, 128, 160, 192, 200, 256})
      for (int i = 0; i < cases_per_dim; ++i, ++count)
        failures += !CheckAny(RandomCase(dtype, d, random), random(), worst);
    // Long sums, which show a bias of the tensor cores' additions.
    for (const int64_t d : {64, 128, 256}) {
      const Case c{.dtype = dtype,
                   .h = 4,
                   .hk = 1,
                   .d = d,
                   .len_q = {70},
                   .len_k = {8000},
                   .page_size = 16,
                   .window_right = 0,
                   .v_mean = 2.0};
      failures += !CheckAny(c, random(), worst);
      ++count;
    }
    std::printf("%-5s worst relative error %.2e\n", std::string(Name(dtype)).c_str(), worst);
  }
  std::printf("%d cases, %d failures\n", count, failures);
  return failures == 0;
}

// The median time of a call in microseconds, over copies of the same batch.
template <class T>
double Time(const Case& c) {
  constexpr int kCopies = 2, kRepeats = 7;
  const Batch<T> batch(c, 1);
  OnDevice<T> first(batch), second(batch);
  const Params* const params[kCopies] = {&first.p, &second.p};
  cudaEvent_t begin, end;
  Require(cudaEventCreate(&begin));
  Require(cudaEventCreate(&end));
  std::vector<double> times;
  for (int repeat = 0; repeat < kRepeats + 1; ++repeat) {
    constexpr int kCalls = 10;
    Require(cudaEventRecord(begin));
    for (int call = 0; call < kCalls; ++call)
      Require(LaunchPrefill(*params[call % kCopies], CudaContext{}));
    Require(cudaEventRecord(end));
    Require(cudaEventSynchronize(end));
    float milliseconds = 0.0f;
    Require(cudaEventElapsedTime(&milliseconds, begin, end));
    if (repeat > 0) times.push_back(milliseconds * 1e3 / kCalls);
  }
  std::sort(times.begin(), times.end());
  return times[kRepeats / 2];
}

void TimeAll() {
  const auto row = [](const char* what, DType dtype, int64_t b, int64_t n, int64_t d,
                      int64_t page_size, int64_t left, int64_t right) {
    const Case c{.dtype = dtype,
                 .h = 32,
                 .hk = 8,
                 .d = d,
                 .len_q = std::vector<int64_t>(b, n),
                 .len_k = std::vector<int64_t>(b, n),
                 .page_size = page_size,
                 .window_left = left,
                 .window_right = right,
                 .with_lse = false};
    const double us = dtype == kF32   ? Time<float>(c)
                      : dtype == kF16 ? Time<__half>(c)
                                      : Time<__nv_bfloat16>(c);
    const double keys = left >= 0    ? std::min<double>(left + 1, n)
                        : right == 0 ? n / 2.0
                                     : static_cast<double>(n);
    std::printf("%-26s %10.1f us %7.1f TFLOP/s\n", what, us,
                4.0 * b * n * keys * 32 * d / us * 1e-6);
  };
  row("bf16 4x4096 d128 dense", kBF16, 4, 4096, 128, 0, -1, 0);
  row("bf16 4x4096 d128 page 16", kBF16, 4, 4096, 128, 16, -1, 0);
  row("bf16 4x4096 d128 full", kBF16, 4, 4096, 128, 0, -1, -1);
  row("f16 4x4096 d128 page 16", kF16, 4, 4096, 128, 16, -1, 0);
  row("bf16 1x512 d128 page 16", kBF16, 1, 512, 128, 16, -1, 0);
  row("bf16 1x2048 d128 page 16", kBF16, 1, 2048, 128, 16, -1, 0);
  row("bf16 1x4096 d128 page 16", kBF16, 1, 4096, 128, 16, -1, 0);
  row("bf16 1x16384 d128 page 16", kBF16, 1, 16384, 128, 16, -1, 0);
  row("bf16 1x16384 w1024 page 16", kBF16, 1, 16384, 128, 16, 1023, 0);
  row("bf16 4x4096 d64 page 16", kBF16, 4, 4096, 64, 16, -1, 0);
  row("bf16 4x4096 d96 page 16", kBF16, 4, 4096, 96, 16, -1, 0);
  row("bf16 4x4096 d192 page 16", kBF16, 4, 4096, 192, 16, -1, 0);
  row("bf16 4x4096 d256 page 16", kBF16, 4, 4096, 256, 16, -1, 0);
  row("f32 2x2048 d128 page 16", kF32, 2, 2048, 128, 16, -1, 0);
}

}  // namespace
}  // namespace intarsia::attention

int main(int argc, char** argv) {
  const std::string only = argc > 1 ? argv[1] : "";
  const int cases_per_dim = argc > 2 ? std::atoi(argv[2]) : 6;
  if (only != "time" && !intarsia::attention::CheckAll(cases_per_dim)) return 1;
  if (only != "check") intarsia::attention::TimeAll();
  return 0;
}
