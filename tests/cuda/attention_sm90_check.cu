// Checks attention/cuda/sm90/prefill.h against an f64 reference on random ragged batches, then
// times it. On other GPUs than Hopper it says so and checks nothing. Exits with 1 on a failure, 2
// on a hang. Arguments: "check [cases per d]"; "name [cases per d]", which names each case before
// it runs; "time [part of a case's name]"; none for check and time.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "src/attention/cuda/sm90/prefill.h"
#include "src/attention/workspace.h"
#include "tests/cuda/attention_time.cuh"

namespace intarsia::attention {
namespace {

bool names_cases = false;

// Room for pieces of tasks, full of NaN.
class Workspace {
 public:
  explicit Workspace(const Params& p) : dims_(WorkspaceDims(p)), data_(dims_[0] * dims_[1]) {
    data_.Poison();
  }
  void AddTo(Params& p) const {
    p.workspace = data_.data();
    p.max_splits = dims_[0], p.workspace_floats = dims_[1];
  }

 private:
  std::array<int64_t, 2> dims_;
  DeviceArray<float> data_;
};

// In e4m3 weights have 4 bits, and tensor cores add products with some 14.
Bounds HopperBoundsOf(const Case& c) {
  if (c.dtype != kF8E4M3) return BoundsOf(c);
  return {5e-2, 5e-3 * std::max(c.q_size, 1.0f)};
}

bool Check(const Case& c, uint32_t seed, double& worst) {
  if (names_cases) {
    std::printf("%s\n", Describe(c).c_str());
    std::fflush(stdout);
  }
  const Batch batch(c, seed);
  std::optional<Workspace> workspace;  // until the kernel has ended
  const auto includes = [&](int64_t seq) {
    return c.len_q[seq] * (c.h / c.hk) >= c.min_packed_rows;
  };
  return CheckBatch(
      batch, includes,
      [&](const Params& p) {
        if (!sm90::Supports(p)) {
          std::printf("not supported: %s\n", Describe(c).c_str());
          std::exit(1);
        }
        Params params = p;
        if (c.min_packed_rows == 1) workspace.emplace(p).AddTo(params);
        Require(sm90::LaunchPrefill(params, ContextOn(), {c.min_packed_rows, c.fill_padding}));
      },
      worst, HopperBoundsOf(c));
}

Case RandomCase(DType type, int64_t d, std::mt19937& random) {
  const auto pick = [&](std::initializer_list<int64_t> values) {
    return values.begin()[random() % values.size()];
  };
  Case c{.dtype = type, .kv = type, .d = d};
  c.hk = pick({1, 2, 3});
  c.h = c.hk * pick({1, 3, 4, 8});
  for (int64_t b = pick({1, 2, 5, 12, 40}); b > 0; --b) {
    c.len_q.push_back(pick({0, 1, 1, 2, 7, 33, 64, b > 12 ? 3 : 150}));
    c.len_k.push_back(random() % 3 ? c.len_q.back() + pick({0, 1, 50, 200})
                                   : pick({0, 1, 31, 64, 65, 129, 300, 700}));
  }
  c.padding = pick({0, 0, 5, 140});
  c.page_size = pick({0, 0, 4, 8, 16, 48, 64, 256});
  if (random() % 4) c.window_right = pick({0, 0, 0, 5});
  if (random() % 3 == 0) c.window_left = pick({0, 1, 20, 100});
  c.min_packed_rows = pick({1, 1, 1, 65});
  DrawVariants(c, random);
  c.unaligned = false;
  return c;
}

// Few rows over many keys, whose tasks are cut into pieces.
Case LongCase(DType type, int64_t d, std::mt19937& random) {
  const auto pick = [&](std::initializer_list<int64_t> values) {
    return values.begin()[random() % values.size()];
  };
  Case c{.dtype = type, .kv = type, .d = d};
  c.hk = pick({1, 2});
  c.h = c.hk * pick({1, 4, 7});
  c.len_q = {pick({65, 70, 100}), pick({0, 1, 5})};
  c.len_k = {pick({3000, 4100}), pick({2, 70, 1500, 6000})};
  c.padding = pick({0, 3, 70});
  c.page_size = pick({0, 16, 64});
  if (random() % 2) c.window_right = pick({0, 3});
  if (random() % 4 == 0) c.window_left = pick({100, 2500});
  DrawVariants(c, random);
  c.unaligned = false;
  return c;
}

DType OutOf(DType type) { return IsFp8(type) ? kBF16 : type; }

// Much padding: a CTA gets several tasks without keys, and then tasks with keys.
Case PaddingCase(DType type, int64_t d) {
  return {.dtype = type,
          .kv = type,
          .out = OutOf(type),
          .h = 3,
          .hk = 3,
          .d = d,
          .len_q = {200, 3},
          .len_k = {300, 40},
          .padding = 13000,
          .page_size = 16,
          .window_right = 0};
}

bool CheckAll(int cases_per_dim) {
  std::mt19937 random(20261123);
  int count = 0, failures = 0;
  for (const DType type : {kBF16, kF16, kF8E4M3}) {
    for (const int64_t d : {8, 16, 64, 72, 96, 128, 192, 200, 256}) {
      // e4m3's rows are whole units of 16 bytes; and there is a case more than 16-bit types need.
      if (IsFp8(type) ? d % 16 != 0 || d > 128 : d == 16) continue;
      double worst = 0.0;
      int failed = 0;
      for (int i = 0; i < cases_per_dim; ++i, ++count)
        failed += !Check(RandomCase(type, d, random), random(), worst);
      Case c{.dtype = type,  // long sums
             .kv = type,
             .out = OutOf(type),
             .h = 4,
             .hk = 1,
             .d = d,
             .len_q = {70},
             .len_k = {8000},
             .page_size = 16,
             .window_right = 0,
             .v_mean = 2.0};
      failed += !Check(c, random(), worst) + !Check(PaddingCase(type, d), random(), worst);
      // Scores far above those of the tiles before: weights by the old bases would overflow.
      c.q_size = 30.0f;
      failed += !Check(c, 18, worst);
      count += 3;
      if (IsFp8(type) && d == 128) {  // sums that the tensor cores alone would get wrong
        c.q_size = 1.0f, c.len_k = {131072};
        failed += !Check(c, 19, worst);
        ++count;
      }
      for (int i = 0; i < cases_per_dim; ++i, ++count)
        failed += !Check(LongCase(type, d, random), random(), worst);
      failures += failed;
      std::printf("%-5s d %-4ld worst relative error %.2e, failures %d\n",
                  std::string(Name(type)).c_str(), long(d), worst, failed);
      std::fflush(stdout);
    }
  }
  std::printf("%d cases, %d failures\n", count, failures);
  return failures == 0;
}

void TimeAll(const std::string& only) {
  const auto time = [&](const char* what, const Workload& w) {
    const std::string name = Text(Name(w.q), " ", w.b, " x ", w.len_q, " ", what);
    if (name.find(only) == std::string::npos) return;
    std::optional<Workspace> workspace;
    const double us = TimeOf(
        w,
        [&](const Params& p, const CudaContext& context) {
          Require(sm90::LaunchPrefill(p, context));
        },
        [&](Params& p) { workspace.emplace(p).AddTo(p); });
    std::printf("%-32s %9.1f us  %6.1f TFLOP/s\n", name.c_str(), us, w.flops() / us * 1e-6);
    std::fflush(stdout);
  };
  for (const int64_t n : {512, 1024, 2048, 4096, 8192, 16384, 32768})
    time("page 16", {.b = 1, .len_q = n, .len_k = n});
  for (const int64_t page : {8, 32, 64, 128})
    time(Text("page ", page).c_str(), {.b = 1, .len_q = 8192, .len_k = 8192, .page_size = page});
  time("page 16", {.b = 4, .len_q = 4096, .len_k = 4096});
  time("page 128", {.b = 4, .len_q = 4096, .len_k = 4096, .page_size = 128});
  time("dense", {.b = 4, .len_q = 4096, .len_k = 4096, .page_size = 0});
  time("dense, full", {.b = 4, .len_q = 4096, .len_k = 4096, .page_size = 0, .right = -1});
  for (const int64_t d : {64, 96, 192, 256}) {
    for (const int64_t n : {2048, 8192, 16384})
      time(Text("page 16, d ", d).c_str(), {.b = 1, .len_q = n, .len_k = n, .d = d});
  }
  time("dense, 192/128",
       {.b = 1, .len_q = 8192, .len_k = 8192, .d = 192, .page_size = 0, .dv = 128});
  time("window 4096", {.b = 1, .len_q = 32768, .len_k = 32768, .left = 4095});
  const auto mixed = [&](const char* what, int64_t prompts, int64_t prompt_q, int64_t prompt_k,
                         int64_t rows, int64_t len_q, int64_t len_k) {
    time(what, {.b = rows,
                .len_q = len_q,
                .len_k = len_k,
                .prompts = prompts,
                .prompt_q = prompt_q,
                .prompt_k = prompt_k});
  };
  mixed("mixed 2x2k+8x1k", 2, 2048, 2048, 8, 1, 1024);
  mixed("mixed 4x1k+16x2k", 4, 1024, 1024, 16, 1, 2048);
  mixed("mixed 2x4k+32x1k", 2, 4096, 4096, 32, 1, 1024);
  mixed("chunk 1k on 32k + 32x4k", 1, 1024, 32768, 32, 1, 4096);
  mixed("speculative 16x5 on 4k", 0, 0, 0, 16, 5, 4096);
  for (const int64_t rows : {64, 256, 1024}) mixed("chunk on 32k", 0, 0, 0, 1, rows, 32768);
  const DType e4m3 = kF8E4M3;
  for (const int64_t n : {512, 2048, 4096, 8192, 16384, 32768})
    time("page 16", {.q = e4m3, .kv = e4m3, .b = 1, .len_q = n, .len_k = n});
  time("dense", {.q = e4m3, .kv = e4m3, .b = 4, .len_q = 4096, .len_k = 4096, .page_size = 0});
  time("page 16, d 64", {.q = e4m3, .kv = e4m3, .b = 1, .len_q = 8192, .len_k = 8192, .d = 64});
  time("f16, page 16", {.q = kF16, .kv = kF16, .b = 4, .len_q = 4096, .len_k = 4096});
}

}  // namespace
}  // namespace intarsia::attention

int main(int argc, char** argv) {
  const std::string only = argc > 1 ? argv[1] : "";
  const std::string then = argc > 2 ? argv[2] : "";
  const int cases_per_dim = then.empty() || only == "time" ? 12 : std::atoi(then.c_str());
  intarsia::attention::names_cases = only == "name";
  if (const int arch = intarsia::attention::ContextOn().device->arch;
      arch != intarsia::cuda::kHopper) {
    std::printf("skipped: the kernel is for sm_90a alone, this GPU is seen as sm_%d\n", arch);
    return 0;
  }
  if (only != "time" && !intarsia::attention::CheckAll(cases_per_dim)) return 1;
  if (only != "check" && only != "name") intarsia::attention::TimeAll(only == "time" ? then : "");
  return 0;
}
