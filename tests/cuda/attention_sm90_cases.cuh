// Random ragged batches for attention/cuda/sm90/prefill.h, compared with the f64 reference. The
// programs that check it on a GPU and in the emulator (tests/emulator) share them.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <random>

#include "src/attention/cuda/sm90/prefill.h"
#include "src/attention/workspace.h"
#include "tests/cuda/attention_check.cuh"

namespace intarsia::attention {

inline bool names_cases = false;  // before they run

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

// Of queries whose scores lie so far apart that f32 does not hold weights by an old base; those in
// e4m3 have no larger numbers.
inline constexpr float kFarScores = 1000.0f, kFarE4M3Scores = 200.0f;

// In e4m3 weights have 4 bits, and tensor cores add products with some 14. Scores of thousands have
// steps of some 1e-4 in f32.
inline Bounds HopperBoundsOf(const Case& c) {
  if (c.dtype == kF8E4M3)
    return {c.q_size == kFarE4M3Scores ? 1e-1 : 5e-2, 5e-3 * std::max(c.q_size, 1.0f)};
  Bounds bounds = BoundsOf(c);
  if (c.q_size == kFarScores) bounds.lse *= 25;
  return bounds;
}

inline bool Check(const Case& c, uint32_t seed, double& worst) {
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

inline Case RandomCase(const Types& types, int64_t d, std::mt19937& random) {
  const auto pick = [&](std::initializer_list<int64_t> values) {
    return values.begin()[random() % values.size()];
  };
  Case c{.dtype = types.q, .kv = types.kv, .d = d};
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

// One in four of those that may have them has far scores, wherever its keys lie.
inline Case MaybeFar(Case c, std::mt19937& random) {
  const bool folds = c.softcap == 0.0f && c.alibi == Per::kNone && c.scale >= 0.0f;
  if (!folds || c.q_size != 1.0f || random() % 4 != 0) return c;
  c.q_size = c.dtype == kF8E4M3 ? kFarE4M3Scores : kFarScores;
  c.with_lse = false;
  return c;
}

// Few rows over many keys, whose tasks are cut into pieces.
inline Case LongCase(const Types& types, int64_t d, std::mt19937& random) {
  const auto pick = [&](std::initializer_list<int64_t> values) {
    return values.begin()[random() % values.size()];
  };
  Case c{.dtype = types.q, .kv = types.kv, .d = d};
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

inline DType OutOf(DType type) { return IsFp8(type) ? kBF16 : type; }

// Much padding: a CTA gets several tasks without keys, and then tasks with keys.
inline Case PaddingCase(const Types& types, int64_t d) {
  return {.dtype = types.q,
          .kv = types.kv,
          .out = OutOf(types.q),
          .h = 3,
          .hk = 3,
          .d = d,
          .len_q = {200, 3},
          .len_k = {300, 40},
          .padding = 13000,
          .page_size = 16,
          .window_right = 0};
}

// A task that is far shorter than its window lets a CTA expect: of the slices that it is cut into,
// one between two others has no tile.
inline Case SparseCase(const Types& types, int64_t d) {
  return {.dtype = types.q,
          .kv = types.kv,
          .out = OutOf(types.q),
          .h = 2,
          .hk = 2,
          .d = d,
          .len_q = {65, 1},
          .len_k = {4100, 2},
          .window_left = 100};
}

inline constexpr Types kHopperTypes[] = {{kBF16, kBF16},   {kF16, kF16},     {kF8E4M3, kF8E4M3},
                                         {kBF16, kF8E4M3}, {kBF16, kF8E5M2}, {kF16, kF8E4M3},
                                         {kF16, kF8E5M2}};

// Checks every `parts`-th of kHopperTypes, from number `part` on.
inline bool CheckAll(int cases_per_dim, size_t part = 0, size_t parts = 1) {
  int count = 0, failures = 0;
  for (size_t number = part; number < std::size(kHopperTypes); number += parts) {
    const Types& types = kHopperTypes[number];
    std::mt19937 random(20261123 + number);
    const bool e4m3 = types.q == kF8E4M3;
    for (const int64_t d : {8, 16, 64, 72, 96, 128, 192, 200, 208, 256}) {
      // Rows of fp8 are whole units of 16 bytes; and there are cases more than 16-bit types need.
      if (IsFp8(types.kv) ? d % 16 != 0 || (e4m3 && d > 128) : d == 16 || d == 208) continue;
      double worst = 0.0;
      int failed = 0;
      for (int i = 0; i < cases_per_dim; ++i, ++count)
        failed += !Check(MaybeFar(RandomCase(types, d, random), random), random(), worst);
      Case c = LongSums(types, d);
      c.out = OutOf(types.q);
      failed += !Check(c, random(), worst) + !Check(PaddingCase(types, d), random(), worst);
      failed += !Check(SparseCase(types, d), 17, worst);
      // Scores far above those of the tiles before: weights by the old bases would overflow.
      c.q_size = 30.0f;
      failed += !Check(c, 18, worst);
      count += 4;
      if (!e4m3) {  // scores are needed once more
        c.q_size = kFarScores;
        failed += !Check(c, 20, worst);
        // Bases so far from 0 that they do not rise by small numbers: the mean of V. Whole tasks,
        // since pieces would be weighed by lse.
        c.alike = 3344.0f, c.with_lse = false, c.len_q = {300}, c.len_k = {400};
        failed += !Check(c, 21, worst);
        count += 2;
      }
      if (e4m3 && d == 128) {  // sums that the tensor cores alone would get wrong
        c.q_size = 1.0f, c.len_k = {131072};
        failed += !Check(c, 19, worst);
        ++count;
      }
      for (int i = 0; i < cases_per_dim; ++i, ++count)
        failed += !Check(MaybeFar(LongCase(types, d, random), random), random(), worst);
      failures += failed;
      std::printf("%-16s d %-4ld worst relative error %.2e, failures %d\n", NameOf(types).c_str(),
                  long(d), worst, failed);
      std::fflush(stdout);
    }
  }
  std::printf("%d cases, %d failures\n", count, failures);
  return count > 0 && failures == 0;
}

}  // namespace intarsia::attention
