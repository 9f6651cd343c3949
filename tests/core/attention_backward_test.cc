// The gradient of attention on the CPU: its bits do not depend on the threads, and sequences never
// meet in a result. tests/test_attention_gradient.py has its numbers.
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "src/attention/backward.h"
#include "src/core/cpu/thread_pool.h"

namespace intarsia::attention {
namespace {

using Floats = std::vector<float>;

struct Gradient {
  Floats dq, dk, dv;
  bool operator==(const Gradient&) const = default;
};

class Batch {
 public:
  int64_t num_heads = 4, num_kv_heads = 2, head_dim = 40;
  std::vector<int32_t> starts_q, starts_k;
  int64_t window_left = -1, window_right = -1;
  float softcap = 0;

  // Fills the arrays, and makes out and lse of them.
  void Draw(std::mt19937& random, int64_t tokens, int64_t keys) {
    num_tokens_ = tokens;
    num_keys_ = keys;
    for (Floats* x : {&q_, &dout_}) Fill(random, *x, tokens * num_heads * head_dim);
    for (Floats* x : {&k_, &v_}) Fill(random, *x, keys * num_kv_heads * head_dim);
    out_.resize(q_.size());
    lse_.resize(static_cast<size_t>(tokens * num_heads));
    const Status status = Run(Forward(), CpuContext());
    ASSERT_TRUE(status.ok()) << status.message;
  }

  Gradient Differentiate(int num_threads) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();  // all is written
    Gradient result{Floats(q_.size(), kNan), Floats(k_.size(), kNan), Floats(v_.size(), kNan)};
    BackwardParams b{.forward = Forward(), .dout = dout_.data()};
    b.dq = result.dq.data();
    b.dk = result.dk.data();
    b.dv = result.dv.data();
    Floats workspace(static_cast<size_t>(BackwardWorkspace(b).floats()));
    b.forward.workspace = workspace.data();
    b.forward.max_splits = 1;
    b.forward.workspace_floats = static_cast<int64_t>(workspace.size());
    const ThreadPool pool(num_threads);
    const Status status = RunBackward(b, CpuContext(&pool));
    EXPECT_TRUE(status.ok()) << status.message;
    return result;
  }

  const Floats& out() const { return out_; }

 private:
  static void Fill(std::mt19937& random, Floats& x, int64_t count) {
    std::normal_distribution<float> normal;
    x.resize(static_cast<size_t>(count));
    for (float& value : x) value = normal(random);
  }

  Params Forward() {
    Params p;
    p.dtype = p.out_dtype = DType::kF32;
    p.q = q_.data();
    p.q_head_stride = head_dim;
    p.q_token_stride = num_heads * head_dim;
    p.out = out_.data();
    p.lse = lse_.data();
    p.num_tokens = num_tokens_;
    p.num_seqs = static_cast<int64_t>(starts_q.size()) - 1;
    p.num_heads = num_heads;
    p.head_dim = head_dim;
    p.max_len_k = num_keys_;
    p.cu_seqlens_q = {starts_q.data(), false};
    p.cu_seqlens_k = {starts_k.data(), false};
    const CacheStrides strides{.slot = num_kv_heads * head_dim, .head = head_dim};
    p.cache = {.dtype = DType::kF32,
               .k = k_.data(),
               .v = v_.data(),
               .num_pages = 1,
               .page_size = num_keys_,
               .num_kv_heads = num_kv_heads,
               .head_dim = head_dim,
               .v_head_dim = head_dim,
               .k_strides = strides,
               .v_strides = strides};
    p.scale = 0.2f;
    p.softcap = softcap;
    p.window_left = window_left;
    p.window_right = window_right;
    return p;
  }

  int64_t num_tokens_ = 0, num_keys_ = 0;
  Floats q_, k_, v_, dout_, out_, lse_;
};

TEST(AttentionBackward, AnyNumberOfThreadsGivesTheSameBits) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto draw = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    Batch batch;
    batch.num_kv_heads = draw(1, 3);
    batch.num_heads = batch.num_kv_heads * draw(1, 3);
    batch.head_dim = 8 * draw(1, 9);
    if (seed % 2) batch.window_right = draw(0, 3);
    if (seed % 3 == 0) batch.window_left = draw(0, 150);
    if (seed % 4 == 0) batch.softcap = 5;
    batch.starts_q = batch.starts_k = {0};
    for (int i = draw(1, 3); i > 0; --i) {
      batch.starts_q.push_back(batch.starts_q.back() + draw(1, 150));
      batch.starts_k.push_back(batch.starts_k.back() + draw(1, 300));
    }
    batch.Draw(random, batch.starts_q.back(), batch.starts_k.back());
    const Gradient alone = batch.Differentiate(1);
    for (int threads : {2, 3, 4, 7}) EXPECT_TRUE(batch.Differentiate(threads) == alone) << threads;
  }
}

// A start that falls counts as the largest so far, in both passes: otherwise sequences would share
// keys, and store dk and dv of them in a race.
TEST(AttentionBackward, StartsOfKeysNeverFall) {
  Batch batch;
  batch.starts_q = {0, 60, 120, 180, 240};
  std::mt19937 random(1);
  const auto both = [&](std::vector<int32_t> starts_k, int threads) {
    batch.starts_k = std::move(starts_k);
    random.seed(1);
    batch.Draw(random, 240, 200);
    return std::pair(batch.out(), batch.Differentiate(threads));
  };
  const auto check = [&](const std::vector<int32_t>& falling, const std::vector<int32_t>& counted) {
    for (int threads : {1, 4})
      for (int run = 0; run < 5; ++run)
        EXPECT_TRUE(both(falling, threads) == both(counted, threads)) << threads << ", " << run;
  };
  check({0, 150, 0, 150, 0}, {0, 150, 150, 150, 150});
  check({0, 150, 0, 180, 90}, {0, 150, 150, 180, 180});
  check({70, 20, 100, -5, 1000}, {70, 70, 100, 100, 200});
}

}  // namespace
}  // namespace intarsia::attention
