// A random batch for attention on the CPU, with any of its variants, and the check of a result.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "src/attention/cpu/forward.h"
#include "src/core/cpu/thread_pool.h"
#include "tests/core/attention_reference.h"

namespace intarsia::attention {
namespace {

// What to draw a batch from; the rest is drawn.
struct Shape {
  DType dtype = DType::kF32, kv_dtype = DType::kF32, out_dtype = DType::kF32;
  bool paged = true;
  int64_t num_kv_heads = 2, group = 4, head_dim = 64, v_head_dim = 64;
  std::vector<int64_t> lens_q, lens_k;
};

class Batch {
 public:
  Batch(const Shape& shape, std::mt19937& random) : random_(random), shape_(shape) {
    p_.dtype = shape.dtype;
    p_.out_dtype = shape.out_dtype;
    p_.num_seqs = static_cast<int64_t>(shape.lens_q.size());
    p_.num_heads = shape.num_kv_heads * shape.group;
    p_.head_dim = shape.head_dim;
    p_.scale = static_cast<float>(1.5 / std::sqrt(static_cast<double>(shape.head_dim)));
    DrawQueries();
    DrawLeftpad();
    shape.paged ? DrawPaged() : DrawDense();
    if (Chance(3)) p_.softcap = static_cast<float>(Draw(1, 30));
    if (Chance(2)) p_.window_right = Chance(4) ? Draw(0, 9) : 0;
    if (Chance(3)) p_.window_left = Chance(8) ? std::numeric_limits<int64_t>::max() : Draw(0, 40);
    if (Chance(5))
      p_.num_seqs_device = num_seqs_device_.Set({Draw(-1, p_.num_seqs + 1)}, Chance(2));
    DrawScales();
  }

  Params& params() { return p_; }

  void Check(CpuKernel& kernel, int num_threads) {
    const bool with_lse = Chance(2);
    const int64_t rows = p_.num_tokens * p_.num_heads, dv = shape_.v_head_dim;
    Array out(p_.out_dtype, rows * dv);
    std::vector<float> lse(static_cast<size_t>(rows), std::numeric_limits<float>::quiet_NaN());
    Params params = p_;
    params.out = out.data();
    params.lse = with_lse ? lse.data() : nullptr;
    const ThreadPool pool(num_threads);
    const Status status = RunPlanned(params, CpuContext(&pool), kernel);
    ASSERT_TRUE(status.ok()) << status.message;

    if (!reference_) reference_.emplace(p_);
    const Result& expected = reference_->result();
    double error = 0, norm = 0;
    for (int64_t i = 0; i < out.size(); ++i) {
      const double want = expected.out[static_cast<size_t>(i)];
      const int64_t row = i / dv, token = row / p_.num_heads, head = row % p_.num_heads;
      if (expected.lse[static_cast<size_t>(head * p_.num_tokens + token)] == -kInf) {
        ASSERT_EQ(out.Get(i), 0.0) << "row " << row;
      }
      error += (out.Get(i) - want) * (out.Get(i) - want);
      norm += want * want;
    }
    const double tolerance = p_.out_dtype == DType::kF32   ? 1e-5
                             : p_.out_dtype == DType::kF16 ? 1e-3
                                                           : 6e-3;
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
  // What an index must never be, and may be all the same.
  int64_t Rubbish() {
    constexpr int64_t kExtremes[] = {std::numeric_limits<int64_t>::min(),
                                     std::numeric_limits<int64_t>::max(), -(int64_t{1} << 31),
                                     (int64_t{1} << 31) - 1};
    return Chance(2) ? Draw(-100, 100) * 1000 : kExtremes[Draw(0, 3)];
  }
  void Fill(Array& array, int64_t begin, int64_t count) {
    std::normal_distribution<double> normal;
    for (int64_t i = begin; i < begin + count; ++i) array.Set(i, normal(random_));
  }

  void DrawQueries() {
    std::vector<int64_t> cu{Chance(8) ? Draw(-2, 3) : 0};
    for (int64_t len : shape_.lens_q) cu.push_back(cu.back() + len);
    p_.num_tokens = std::max<int64_t>(0, cu.back()) + (Chance(3) ? Draw(1, 5) : 0);
    if (Chance(8)) cu[static_cast<size_t>(Draw(0, p_.num_seqs))] = Rubbish();
    p_.cu_seqlens_q = cu_seqlens_q_.Set(cu, Chance(2));
    p_.q_head_stride = p_.head_dim + (Chance(3) ? Draw(1, 9) : 0);
    p_.q_token_stride = p_.num_heads * p_.q_head_stride + (Chance(3) ? Draw(1, 99) : 0);
    q_ = Array(p_.dtype, p_.num_tokens * p_.q_token_stride);
    Fill(q_, 0, q_.size());
    p_.q = q_.data();
  }

  void DrawLeftpad() {
    leftpads_.assign(shape_.lens_k.size(), 0);
    if (!Chance(3)) return;
    for (size_t i = 0; i < leftpads_.size(); ++i)
      leftpads_[i] = Chance(8) ? Rubbish() : Draw(0, shape_.lens_k[i]);
    p_.leftpad_k = leftpad_k_.Set(leftpads_, Chance(2));
  }
  // Of the i-th sequence, which has `len` slots.
  int64_t Leftpad(size_t i, int64_t len) const {
    if (!p_.leftpad_k.data) return 0;
    return std::clamp<int64_t>(p_.leftpad_k.At(static_cast<int64_t>(i)), 0, len);
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
      for (int64_t slot = 0; slot < lens[i]; ++slot) {
        int64_t& page = table[i * static_cast<size_t>(p_.page_table_stride) +
                              static_cast<size_t>(slot / c.page_size)];
        if (slot % c.page_size == 0) {
          page = pages[next++];
          // Still out of range when cut to 32 bits.
          if (some_missing && Chance(4)) page = Chance(2) ? -1 - Draw(0, 1 << 30) : c.num_pages;
        }
        if (page >= 0 && page < c.num_pages && slot >= Leftpad(i, lens[i]))
          FillSlot(page, slot % c.page_size);
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
    const bool shorter = Chance(3), rubbish = Chance(8);
    for (size_t i = 0; i < used.size(); ++i) {
      if (shorter) used[i] = Draw(0, used[i]);
      for (int64_t slot = Leftpad(i, used[i]); slot < used[i]; ++slot) FillSlot(0, cu[i] + slot);
    }
    if (rubbish) {  // then any slot may be seen
      cu[static_cast<size_t>(Draw(0, p_.num_seqs))] = Rubbish();
      if (!used.empty()) used[static_cast<size_t>(Draw(1, p_.num_seqs) - 1)] = Rubbish();
      for (int64_t slot = 0; slot < c.page_size; ++slot) FillSlot(0, slot);
    }
    p_.cu_seqlens_k = cu_seqlens_k_.Set(cu, Chance(2));
    if (shorter) p_.seqused_k = seqused_k_.Set(used, Chance(2));
  }

  // K and V in one array, alternating head by head, or each in its own with gaps of its own.
  void AllocateCache() {
    CacheView& c = p_.cache;
    c.dtype = shape_.kv_dtype;
    c.num_kv_heads = shape_.num_kv_heads;
    c.head_dim = shape_.head_dim;
    c.v_head_dim = shape_.v_head_dim;
    if (Chance(4)) {
      c.num_layers = 2;
      layer_ = static_cast<int32_t>(Chance(6) ? (Chance(2) ? -1 : 2) : Draw(0, 1));
      c.layer = &layer_;
    }
    const bool combined = Chance(2);
    const auto strides = [&](int64_t head) {
      CacheStrides s{.head = head};
      s.slot = s.head * c.num_kv_heads + (combined ? 0 : Draw(0, 1) * Draw(1, 9));
      s.page = s.slot * c.page_size;
      s.layer = s.page * c.num_pages;
      return s;
    };
    c.k_strides = strides(c.head_dim + (combined ? c.v_head_dim : 0));
    c.v_strides = combined ? c.k_strides : strides(c.v_head_dim);
    k_ = Array(c.dtype, c.num_layers * c.k_strides.layer);
    v_ = Array(c.dtype, combined ? 0 : c.num_layers * c.v_strides.layer);
    c.k = k_.data();
    c.v = combined ? static_cast<char*>(c.k) + c.head_dim * Bytes(c.dtype) : v_.data();
  }

  void FillSlot(int64_t page, int64_t slot) {
    const CacheView& c = p_.cache;
    if (c.layer && (layer_ < 0 || layer_ >= c.num_layers)) return;
    const int64_t heads = c.num_kv_heads;
    Fill(k_, c.k_strides.At(layer_, page, slot, 0), heads * c.k_strides.head);
    if (v_.size()) Fill(v_, c.v_strides.At(layer_, page, slot, 0), heads * c.v_strides.head);
  }

  // Numbers around 1: one, one of each head, or one of each head of each sequence.
  ScaleView DrawScale(std::vector<float>& scale, int64_t heads) {
    const int64_t form = Draw(0, 2);
    const int64_t count = form == 0 ? 1 : form == 1 ? heads : heads * p_.num_seqs;
    for (int64_t i = 0; i < count + 1; ++i)  // one more: an address even without sequences
      scale.push_back(std::uniform_real_distribution<float>(0.5f, 1.5f)(random_));
    return {.data = scale.data(),
            .seq_stride = form == 2 ? heads : 0,
            .head_stride = form == 0 ? 0 : 1};
  }

  void DrawScales() {
    const int64_t hk = shape_.num_kv_heads;
    if (IsFp8(p_.dtype) && Chance(2)) p_.q_scale = DrawScale(q_scale_, hk);
    if (IsFp8(p_.cache.dtype) && Chance(2)) p_.k_scale = DrawScale(k_scale_, hk);
    if (IsFp8(p_.cache.dtype) && Chance(2)) p_.v_scale = DrawScale(v_scale_, hk);
    if (Chance(3)) p_.alibi_slopes = DrawScale(slopes_, p_.num_heads);
    if (!Chance(3)) return;
    for (int64_t head = 0; head < p_.num_heads; ++head)
      sinks_.push_back(Chance(8) ? -std::numeric_limits<float>::infinity()
                                 : static_cast<float>(Draw(-30, 30)) / 10);
    p_.sinks = sinks_.data();
  }

  std::mt19937& random_;
  const Shape shape_;
  Params p_;
  Array q_{DType::kF32, 0}, k_{DType::kF32, 0}, v_{DType::kF32, 0};
  Indices cu_seqlens_q_, cu_seqlens_k_, seqused_k_, leftpad_k_, page_table_, num_seqs_device_;
  std::vector<int64_t> leftpads_;
  std::vector<float> q_scale_, k_scale_, v_scale_, slopes_, sinks_;
  int32_t layer_ = 0;
  std::optional<Reference> reference_;
};

}  // namespace
}  // namespace intarsia::attention
