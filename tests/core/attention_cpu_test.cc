// Attention on the CPU against f64, over drawn batches, for each instruction set and several
// threads.
#include "src/attention/attention_cpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "src/core/cpu/isa.h"
#include "src/core/cpu/thread_pool.h"
#include "tests/core/attention_reference.h"

namespace intarsia::attention {
namespace {

// What to draw a batch from; the rest is drawn.
struct Shape {
  DType dtype = DType::kF32;
  bool paged = true;
  int64_t num_kv_heads = 2, group = 4, head_dim = 64;
  std::vector<int64_t> lens_q, lens_k;
};

class Batch {
 public:
  Batch(const Shape& shape, std::mt19937& random) : random_(random), shape_(shape) {
    p_.dtype = p_.cache.dtype = shape.dtype;
    p_.num_seqs = static_cast<int64_t>(shape.lens_q.size());
    p_.num_heads = shape.num_kv_heads * shape.group;
    p_.head_dim = shape.head_dim;
    p_.scale = static_cast<float>(1.5 / std::sqrt(static_cast<double>(shape.head_dim)));
    DrawQueries();
    shape.paged ? DrawPaged() : DrawDense();
    if (Chance(3)) p_.softcap = static_cast<float>(Draw(1, 30));
    if (Chance(2)) p_.window_right = Chance(4) ? Draw(0, 9) : 0;
    if (Chance(3)) p_.window_left = Chance(8) ? std::numeric_limits<int64_t>::max() : Draw(0, 40);
    if (Chance(5))
      p_.num_seqs_device = num_seqs_device_.Set({Draw(-1, p_.num_seqs + 1)}, Chance(2));
  }

  Params& params() { return p_; }

  void Check(CpuKernel& kernel, int num_threads) {
    const bool with_lse = Chance(2);
    const int64_t rows = p_.num_tokens * p_.num_heads;
    Array out(p_.dtype, rows * p_.head_dim);
    std::vector<float> lse(static_cast<size_t>(rows), std::numeric_limits<float>::quiet_NaN());
    Params params = p_;
    params.out = out.data();
    params.lse = with_lse ? lse.data() : nullptr;
    const ThreadPool pool(num_threads);
    const Status status = RunPlanned(params, CpuContext(&pool), kernel);
    ASSERT_TRUE(status.ok()) << status.message;

    const Reference reference(p_);
    const Result& expected = reference.result();
    double error = 0, norm = 0;
    for (int64_t i = 0; i < out.size(); ++i) {
      const double want = expected.out[static_cast<size_t>(i)];
      const int64_t row = i / p_.head_dim, token = row / p_.num_heads, head = row % p_.num_heads;
      if (expected.lse[static_cast<size_t>(head * p_.num_tokens + token)] == -kInf) {
        ASSERT_EQ(out.Get(i), 0.0) << "row " << row;
      }
      error += (out.Get(i) - want) * (out.Get(i) - want);
      norm += want * want;
    }
    const double tolerance = p_.dtype == DType::kF32 ? 1e-5 : p_.dtype == DType::kF16 ? 1e-3 : 6e-3;
    EXPECT_LE(std::sqrt(error), tolerance * std::sqrt(norm));
    for (size_t i = 0; with_lse && i < lse.size(); ++i) {
      if (expected.lse[i] == -kInf)
        ASSERT_EQ(lse[i], -kInf) << i;
      else
        ASSERT_NEAR(lse[i], expected.lse[i], 1e-5 * (1 + std::abs(expected.lse[i]))) << i;
    }
  }

 private:
  int64_t Draw(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  bool Chance(int64_t one_in) { return Draw(1, one_in) == 1; }
  void Fill(Array& array, int64_t begin, int64_t count) {
    std::normal_distribution<double> normal;
    for (int64_t i = begin; i < begin + count; ++i) array.Set(i, normal(random_));
  }

  void DrawQueries() {
    std::vector<int64_t> cu{Chance(8) ? Draw(-2, 3) : 0};
    for (int64_t len : shape_.lens_q) cu.push_back(cu.back() + len);
    p_.num_tokens = std::max<int64_t>(0, cu.back()) + (Chance(3) ? Draw(1, 5) : 0);
    if (Chance(8))
      cu[static_cast<size_t>(Draw(0, p_.num_seqs))] = Draw(-100, 100) * 1000;  // rubbish
    p_.cu_seqlens_q = cu_seqlens_q_.Set(cu, Chance(2));
    p_.q_head_stride = p_.head_dim + (Chance(3) ? Draw(1, 9) : 0);
    p_.q_token_stride = p_.num_heads * p_.q_head_stride + (Chance(3) ? Draw(1, 99) : 0);
    q_ = Array(p_.dtype, p_.num_tokens * p_.q_token_stride);
    Fill(q_, 0, q_.size());
    p_.q = q_.data();
  }

  // K and V; only the slots that sequences use are not NaN.
  void DrawPaged() {
    CacheView& c = p_.cache;
    c.page_size = std::vector<int64_t>{1, 3, 16, 64, 128}[static_cast<size_t>(Draw(0, 4))];
    int64_t longest = 1, used_pages = 0;
    for (int64_t len : shape_.lens_k)
      longest = std::max(longest, len), used_pages += (len + c.page_size - 1) / c.page_size;
    p_.pages_per_seq = (longest + c.page_size - 1) / c.page_size;
    p_.page_table_stride = p_.pages_per_seq + Draw(0, 2);
    p_.max_len_k = p_.pages_per_seq * c.page_size;
    c.num_pages = used_pages + Draw(1, 3);
    AllocateCache();
    std::vector<int64_t> pages(static_cast<size_t>(c.num_pages));
    for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int64_t>(i);
    std::shuffle(pages.begin(), pages.end(), random_);
    std::vector<int64_t> table(static_cast<size_t>(p_.num_seqs * p_.page_table_stride), -7);
    std::vector<int64_t> lens = shape_.lens_k;
    const bool some_missing = Chance(4);
    size_t next = 0;
    for (size_t i = 0; i < lens.size(); ++i) {
      for (int64_t key = 0; key < lens[i]; ++key) {
        int64_t& page = table[i * static_cast<size_t>(p_.page_table_stride) +
                              static_cast<size_t>(key / c.page_size)];
        if (key % c.page_size == 0)
          page = some_missing && Chance(4) ? (Chance(2) ? -1 : c.num_pages) : pages[next++];
        if (page >= 0 && page < c.num_pages) FillSlot(page, key % c.page_size);
      }
      // Too long a length counts as the longest; its pages are all out of range here.
      if (lens[i] == 0 && Chance(3)) lens[i] = Chance(2) ? -5 : 1000000;
    }
    p_.paged = true;
    p_.page_table = page_table_.Set(table, Chance(2));
    p_.seqused_k = seqused_k_.Set(lens, Chance(2));
  }

  void DrawDense() {
    CacheView& c = p_.cache;
    std::vector<int64_t> cu{Chance(3) ? Draw(1, 4) : 0};
    for (int64_t len : shape_.lens_k) cu.push_back(cu.back() + len);
    c.num_pages = 1;
    p_.max_len_k = c.page_size = std::max<int64_t>(1, cu.back() + Draw(0, 5));
    AllocateCache();
    std::vector<int64_t> used = shape_.lens_k;
    const bool shorter = Chance(3);
    for (size_t i = 0; i < used.size(); ++i) {
      if (shorter) used[i] = Draw(0, used[i]);
      for (int64_t key = 0; key < used[i]; ++key) FillSlot(0, cu[i] + key);
    }
    p_.cu_seqlens_k = cu_seqlens_k_.Set(cu, Chance(2));
    if (shorter) p_.seqused_k = seqused_k_.Set(used, Chance(2));
  }

  void AllocateCache() {
    CacheView& c = p_.cache;
    const bool combined = Chance(2);
    c.num_kv_heads = shape_.num_kv_heads;
    c.head_dim = shape_.head_dim;
    c.v_head_dim = c.head_dim;
    CacheStrides& strides = c.k_strides;
    strides.head = c.head_dim * (combined ? 2 : 1);
    strides.slot = strides.head * c.num_kv_heads;
    strides.page = strides.slot * c.page_size;
    strides.layer = strides.page * c.num_pages;
    c.v_strides = strides;
    if (Chance(4)) {
      c.num_layers = 2;
      layer_ = static_cast<int32_t>(Chance(6) ? (Chance(2) ? -1 : 2) : Draw(0, 1));
      c.layer = &layer_;
    }
    k_ = Array(p_.dtype, c.num_layers * strides.layer);
    v_ = Array(p_.dtype, combined ? 0 : k_.size());
    c.k = k_.data();
    c.v = combined ? static_cast<char*>(c.k) + c.head_dim * Bytes(p_.dtype) : v_.data();
  }

  void FillSlot(int64_t page, int64_t slot) {
    const CacheView& c = p_.cache;
    if (c.layer && (layer_ < 0 || layer_ >= c.num_layers)) return;
    const int64_t offset = c.k_strides.At(layer_, page, slot, 0);
    Fill(k_, offset, c.k_strides.slot);
    if (v_.size()) Fill(v_, offset, c.k_strides.slot);
  }

  std::mt19937& random_;
  const Shape shape_;
  Params p_;
  Array q_{DType::kF32, 0}, k_{DType::kF32, 0}, v_{DType::kF32, 0};
  Indices cu_seqlens_q_, cu_seqlens_k_, seqused_k_, page_table_, num_seqs_device_;
  int32_t layer_ = 0;
};

struct Kernel {
  Isa isa;
  CpuKernel* run;
};
std::vector<Kernel> KernelsHere() {
  std::vector<Kernel> kernels;
#if defined(__x86_64__)
  if (BestIsa() >= Isa::kAvx2) kernels.push_back({Isa::kAvx2, RunCpu<Isa::kAvx2, CpuWork>});
  if (BestIsa() >= Isa::kAvx512) kernels.push_back({Isa::kAvx512, RunCpu<Isa::kAvx512, CpuWork>});
#else
  kernels.push_back({Isa::kGeneric, RunCpu<Isa::kGeneric, CpuWork>});
#endif
  return kernels;
}

void CheckAll(Batch& batch) {
  for (const Kernel& kernel : KernelsHere())
    for (int num_threads : {1, 4}) {
      SCOPED_TRACE(std::string(Name(kernel.isa)) + ", threads " + std::to_string(num_threads));
      batch.Check(*kernel.run, num_threads);
      if (testing::Test::HasFatalFailure()) return;
    }
}

template <class T>
const T& Pick(std::mt19937& random, const std::vector<T>& choices) {
  return choices[std::uniform_int_distribution<size_t>(0, choices.size() - 1)(random)];
}

TEST(AttentionCpu, DrawnBatches) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    Shape shape{
        .dtype = Pick<DType>(random, {DType::kF32, DType::kF16, DType::kBF16}),
        .paged = Pick<int>(random, {0, 1, 1}) == 1,
        .num_kv_heads = Pick<int64_t>(random, {1, 2, 3}),
        .group = Pick<int64_t>(random, {1, 2, 3, 4, 5, 8, 16}),
        .head_dim = Pick<int64_t>(random, {1, 3, 8, 16, 31, 32, 40, 64, 80, 96, 128, 192, 256}),
        .lens_q = {},
        .lens_k = {}};
    const int64_t num_seqs = Pick<int64_t>(random, {0, 1, 1, 2, 3, 5});
    for (int64_t i = 0; i < num_seqs; ++i) {
      shape.lens_q.push_back(Pick<int64_t>(random, {0, 1, 1, 1, 1, 2, 3, 5, 9, 17, 40}));
      shape.lens_k.push_back(Pick<int64_t>(random, {0, 1, 2, 15, 16, 17, 63, 64, 65, 100, 150}));
    }
    Batch batch(shape, random);
    CheckAll(batch);
    if (HasFatalFailure()) return;
  }
}

TEST(AttentionCpu, LongSequencesAreSplit) {
  for (unsigned seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    Batch batch({.dtype = Pick<DType>(random, {DType::kF32, DType::kF16, DType::kBF16}),
                 .paged = seed % 3 != 0,
                 .num_kv_heads = 1,
                 .group = Pick<int64_t>(random, {1, 4, 8}),
                 .head_dim = Pick<int64_t>(random, {33, 64}),
                 .lens_q = {Pick<int64_t>(random, {1, 3, 16}), 1},
                 .lens_k = {Pick<int64_t>(random, {1024, 3001}), 5}},
                random);
    CheckAll(batch);
    if (HasFatalFailure()) return;
  }
}

TEST(AttentionCpu, LongPrompt) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    std::mt19937 random(1);
    Batch batch({.dtype = dtype,
                 .num_kv_heads = 1,
                 .group = 3,
                 .head_dim = 64,
                 .lens_q = {300},
                 .lens_k = {300}},
                random);
    CheckAll(batch);
  }
}

// Scores far from 0: neither overflow nor a sum that loses its small terms.
TEST(AttentionCpu, LargeScores) {
  std::mt19937 random(1);
  Batch batch({.lens_q = {1, 20}, .lens_k = {200, 200}}, random);
  batch.params().scale = 100.0f;
  CheckAll(batch);
}

}  // namespace
}  // namespace intarsia::attention
