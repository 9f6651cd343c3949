// Checks prefill.h against an f64 reference on random ragged batches, then times it.
// A program of its own, of this file, src/attention/cuda and src/core; needs a GPU. Exits
// with 1 on a failure. An argument, "check [cases per d]" or "time", asks for one half of it.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "src/attention/cuda/choose.h"
#include "src/attention/cuda/sm80/prefill.h"
#include "tests/cuda/attention_time.cuh"

namespace intarsia::attention {
namespace {

// By the portable tiles that the GPU gets.
Status Prefill(const Params& p, const CudaContext& context, PrefillRows rows = {}) {
  const auto portable = PrefillCandidates().subspan(1);
  const Candidate* const choice = Choose(portable, p, *context.device);
  return LaunchPrefill(p, context, choice->tiles, rows);
}

bool Check(const Case& c, uint32_t seed, double& worst) {
  const Batch batch(c, seed);
  const auto includes = [&](int64_t seq) {
    return c.len_q[seq] * (c.h / c.hk) >= c.min_packed_rows;
  };
  return CheckBatch(
      batch, includes,
      [&](const Params& p) {
        Require(Prefill(p, ContextOn(), {c.min_packed_rows, c.fill_padding}));
      },
      worst);
}

Case RandomCase(const Types& types, int64_t d, std::mt19937& random) {
  const auto pick = [&](std::initializer_list<int64_t> values) {
    return values.begin()[random() % values.size()];
  };
  Case c{.dtype = types.q, .kv = types.kv, .d = d};
  c.hk = pick({1, 2, 3});
  c.h = c.hk * pick({1, 3, 4, 8});
  for (int64_t b = pick({1, 2, 5, 12, 40}); b > 0; --b) {
    c.len_q.push_back(pick({0, 1, 1, 2, 7, 33, 64, b > 12 ? 3 : 150}));
    c.len_k.push_back(random() % 3 ? c.len_q.back() + pick({0, 1, 50, 200})
                                   : pick({0, 1, 31, 64, 65, 129, 300}));
  }
  c.padding = pick({0, 0, 5, 140});
  c.page_size = pick({0, 0, 1, 3, 16, 64});
  if (random() % 4) c.window_right = pick({0, 0, 0, 5});
  if (random() % 3 == 0) c.window_left = pick({0, 1, 20, 100});
  c.min_packed_rows = pick({1, 1, 1, 65});
  DrawVariants(c, random);
  return c;
}

bool CheckAll(int cases_per_dim) {
  std::mt19937 random(20261121);
  int count = 0, failures = 0;
  for (const Types& types : kAllTypes) {
    double worst = 0.0;
    for (const int64_t d : {8, 24, 40, 64, 80, 96, 128, 160, 192, 200, 256})
      for (int i = 0; i < cases_per_dim; ++i, ++count)
        failures += !Check(RandomCase(types, d, random), random(), worst);
    for (const int64_t d : {64, 128, 256}) {
      Case c = LongSums(types, d);
      if (IsFp8(types.q)) c.out = kF16;
      failures += cases_per_dim > 1 && !Check(c, random(), worst);
      ++count;
    }
    std::printf("%-20s worst relative error %.2e\n", NameOf(types).c_str(), worst);
  }
  std::printf("%d cases, %d failures\n", count, failures);
  return failures == 0;
}

void TimeAll() {
  constexpr DType kE4M3 = kF8E4M3;
  const Workload llama{.b = 4, .len_q = 4096, .len_k = 4096};
  const auto time = [](const char* what, const Workload& w) {
    const double us = TimeOf(
        w, [](const Params& p, const CudaContext& context) { Require(Prefill(p, context)); });
    std::printf("%-8s %-8s %ld x %-5ld d %ld/%ld %-12s %8.1f us %6.1f TFLOP/s\n",
                std::string(Name(w.q)).c_str(), std::string(Name(w.kv)).c_str(), long(w.b),
                long(w.len_q), long(w.d), long(w.v_dim()), what, us, w.flops() / us * 1e-6);
  };
  const auto with = [&](auto change) {
    Workload w = llama;
    change(w);
    return w;
  };
  const auto of = [&](DType q, DType kv, int64_t d = 128) {
    return with([&](Workload& w) { w.q = q, w.kv = kv, w.d = d; });
  };
  const auto one = [&](int64_t n, int64_t left = -1) {
    return with([&](Workload& w) { w.b = 1, w.len_q = w.len_k = n, w.left = left; });
  };
  time("", llama);
  time("dense", with([](Workload& w) { w.page_size = 0; }));
  time("dense, full", with([](Workload& w) { w.page_size = 0, w.right = -1; }));
  for (const int64_t n : {512, 2048, 16384}) time("", one(n));
  time("window 1024", one(16384, 1023));
  for (const int64_t d : {64, 96, 192, 256}) time("", of(kBF16, kBF16, d));
  time("dense", with([](Workload& w) { w.d = 192, w.dv = 128, w.page_size = 0; }));
  for (const int64_t d : {64, 128, 256}) time("", of(kBF16, kE4M3, d));
  time("", of(kBF16, kF8E5M2));
  time("", of(kE4M3, kE4M3));
  for (const DType kv : {kF32, kE4M3})
    time("", with([&](Workload& w) { w.b = 2, w.len_q = w.len_k = 2048, w.q = kF32, w.kv = kv; }));
}

}  // namespace
}  // namespace intarsia::attention

int main(int argc, char** argv) {
  const std::string only = argc > 1 ? argv[1] : "";
  const int cases_per_dim = argc > 2 ? std::atoi(argv[2]) : 3;
  if (only != "time" && !intarsia::attention::CheckAll(cases_per_dim)) return 1;
  if (only != "check") intarsia::attention::TimeAll();
  return 0;
}
