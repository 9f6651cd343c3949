// Checks decode.h against an f64 reference on random ragged batches, then times it.
// A program of its own, of this file, src/attention/cuda and src/core; needs a GPU. Exits
// with 1 on a failure. Arguments: "check [cases]" or "time [b len_k h hk d page_size]" ask for one
// half of it.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "src/attention/cuda/choose.h"
#include "src/attention/cuda/sm80/decode.h"
#include "tests/cuda/attention_time.cuh"

namespace intarsia::attention {
namespace {

constexpr int64_t kAnyRows = int64_t{1} << 40;

// Room for partial results, poisoned.
class Workspace {
 public:
  explicit Workspace(Params& p) : Workspace(p, decode::WorkspaceDims(ShapeOf(p))) {}

 private:
  Workspace(Params& p, std::array<int64_t, 2> dims)
      : array_(static_cast<size_t>(dims[0] * dims[1])) {
    array_.Poison();
    p.workspace = array_.data();
    p.max_splits = dims[0];
    p.workspace_floats = dims[1];
  }
  DeviceArray<float> array_;
};

// By the tiles that the GPU gets.
Status Decode(const Params& p, const CudaContext& context, DecodeRows rows = {}) {
  const Candidate* const choice = Choose(DecodeCandidates(), p, *context.device);
  return LaunchDecode(p, context, choice->tiles, rows);
}

bool Check(const Case& c, int64_t max_packed_rows, uint32_t seed, double& worst) {
  const Batch batch(c, seed);
  const auto includes = [&](int64_t seq) { return c.len_q[seq] * (c.h / c.hk) <= max_packed_rows; };
  return CheckBatch(
      batch, includes,
      [&](Params& p) {
        const Workspace workspace(p);
        Require(Decode(p, ContextOn(), {max_packed_rows, c.fill_padding}));
        Require(cudaDeviceSynchronize());
      },
      worst);
}

Case RandomCase(const Types& types, std::mt19937& random) {
  const auto pick = [&](std::initializer_list<int64_t> values) {
    return values.begin()[random() % values.size()];
  };
  Case c{.dtype = types.q,
         .kv = types.kv,
         .d = pick({8, 24, 40, 64, 80, 96, 128, 128, 160, 192, 192, 200, 256})};
  c.hk = pick({1, 2, 3});
  c.h = c.hk * pick({1, 3, 4, 8, 32});
  const int64_t b = pick({1, 1, 2, 5, 9, 40, 300}), longest = b > 9 ? 40 : pick({70, 300, 900});
  for (int64_t i = 0; i < b; ++i) {
    c.len_q.push_back(pick({0, 1, 1, 1, 1, 2, 3, b > 9 ? 1 : 9}));
    c.len_k.push_back(random() % 2
                          ? pick({0, 1, 17, 64})
                          : static_cast<int64_t>(random() % longest) + pick({0, c.len_q.back()}));
  }
  if (random() % 4 == 0) c.len_k[random() % c.len_k.size()] = pick({3000, 6000});  // skewed
  c.padding = pick({0, 0, 5});
  c.page_size = pick({0, 1, 3, 16, 16, 64});
  c.window_right = pick({-1, 0, 0, 0, 9});
  c.window_left = pick({-1, -1, 0, 37, 300});
  DrawVariants(c, random);
  return c;
}

// Takes away what plain calls do not have (decode_plain.cuh); other draws hardly ever lack all of
// it.
void MakePlain(Case& c) {
  if (c.page_size == 0) c.page_size = 16;
  c.window_left = -1;
  c.softcap = 0.0f;
  c.alibi = Per::kNone;
  c.sinks = c.leftpad = c.wide = c.unaligned = c.with_lse = false;
}

// Few sequences whose rows fit into one tile (decode_cluster.cuh), which are hardly ever drawn
// either.
void MakeOneTile(Case& c, std::mt19937& random) {
  const auto pick = [&](std::initializer_list<int64_t> values) {
    return values.begin()[random() % values.size()];
  };
  MakePlain(c);
  const int64_t group = pick({1, 3, 4, 4, 8, 16}), b = pick({1, 1, 1, 2, 4, 9});
  c.hk = pick({1, 2, 3, 8});
  c.h = c.hk * group;
  c.len_q.clear(), c.len_k.clear();
  int64_t rows = decode::kTileRows / group;
  const auto take = [&](int64_t most) {
    const int64_t taken = std::min(rows, static_cast<int64_t>(random() % (most + 1)));
    rows -= taken;
    return taken;
  };
  if (c.front > 0) c.front = take(2);
  for (int64_t i = 0; i < b; ++i) {
    c.len_q.push_back(take(pick({1, 1, 2, 16})));
    c.len_k.push_back(pick({0, 1, 17, 64, 300, 2049, static_cast<int64_t>(random() % 7000)}));
  }
  c.padding = take(3);
  if (c.num_seqs >= 0) c.num_seqs = static_cast<int64_t>(random() % (b + 1));
  if (c.scales == Per::kSequence && random() % 2) c.scales = Per::kHead;
}

bool CheckAll(int cases) {
  std::mt19937 random(20261121);
  int failures = 0;
  for (const Types& types : kAllTypes) {
    double worst = 0.0;
    for (int i = 0; i < cases; ++i) {
      Case c = RandomCase(types, random);
      const auto kind = random() % 4;
      if (kind == 0) MakePlain(c);
      if (kind == 1) MakeOneTile(c, random);
      const int64_t max_packed_rows[] = {kAnyRows, kAnyRows, kAnyRows, 4, 64};
      failures += !Check(c, max_packed_rows[random() % 5], random(), worst);
    }
    // Long sums, which show a bias of the tensor cores' additions: heads enough that none is split.
    Case c{.dtype = types.q,
           .kv = types.kv,
           .h = 160,
           .hk = 160,
           .d = 64,
           .len_q = {1},
           .len_k = {20000},
           .page_size = 16,
           .window_right = 0,
           .v_mean = 2.0};
    if (IsFp8(types.q)) c.out = kF16;
    failures += cases > 20 && !Check(c, kAnyRows, random(), worst);
    std::printf("%-20s worst relative error %.2e\n", NameOf(types).c_str(), worst);
  }
  std::printf("%d failures\n", failures);
  return failures == 0;
}

void Time(const Workload& w) {
  std::unique_ptr<Workspace> workspace;
  const double us = TimeOf(
      w, [](const Params& p, const CudaContext& context) { Require(Decode(p, context)); },
      [&](Params& p) { workspace = std::make_unique<Workspace>(p); });
  std::printf("%-8s %4ld x %-6ld h %ld/%ld d %-3ld page %-3ld %s %8.1f us  %5.2f TB/s\n",
              std::string(Name(w.kv)).c_str(), long(w.b), long(w.len_k), long(w.h), long(w.hk),
              long(w.d), long(w.page_size), w.longest ? "skewed" : "      ", us,
              w.bytes() / us * 1e-6);
}

void TimeAll() {
  const auto llama = [](int64_t b, int64_t len_k, DType kv = kBF16) {
    return Workload{.kv = kv, .b = b, .len_k = len_k};
  };
  const auto heads = [](Workload w, int64_t h, int64_t hk, int64_t d = 128) {
    w.h = h, w.hk = hk, w.d = d;
    return w;
  };
  for (const int64_t len_k : {1024, 4096, 16384, 32768, 131072}) Time(llama(1, len_k));
  for (const int64_t len_k : {1024, 4096, 16384}) Time(llama(8, len_k));
  for (const int64_t len_k : {1024, 4096}) Time(llama(64, len_k));
  Time(llama(256, 1024));
  for (const int64_t page_size : {1, 256}) {
    Workload w = llama(64, 4096);
    w.page_size = page_size;
    Time(w);
  }
  for (const int64_t len_k : {4096, 32768}) Time(heads(llama(1, len_k), 32, 1));
  Time(heads(llama(8, 131072), 32, 1));
  Time(heads(llama(8, 4096), 32, 32));
  Workload skewed = llama(64, 512);
  skewed.longest = 131072;
  Time(skewed);
  for (const DType kv : {kBF16, kF8E4M3, kF8E5M2}) {
    if (kv != kBF16)
      for (const int64_t b : {1, 8, 64}) Time(llama(b, 4096, kv));
    for (const int64_t b : {1, 8}) Time(llama(b, 32768, kv));
    Time(heads(llama(64, 4096, kv), 32, 8, 64));
    Time(heads(llama(64, 4096, kv), 16, 4, 256));
    Time(heads(llama(64, 2048, kv), 32, 32));
  }
}

}  // namespace
}  // namespace intarsia::attention

int main(int argc, char** argv) {
  using namespace intarsia::attention;
  const std::string only = argc > 1 ? argv[1] : "";
  const auto number = [&](int i) { return std::atol(argv[i]); };
  if (only != "time" && !CheckAll(argc == 3 ? number(2) : 60)) return 1;
  if (only == "time" && argc == 8) {
    for (const auto kv : {intarsia::DType::kBF16, intarsia::DType::kF8E4M3})
      Time({.kv = kv,
            .b = number(2),
            .len_k = number(3),
            .h = number(4),
            .hk = number(5),
            .d = number(6),
            .page_size = number(7)});
  } else if (only != "check") {
    TimeAll();
  }
  return 0;
}
