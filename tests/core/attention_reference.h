// Attention in f64 by its definition in attention.h, for tests, and arrays to hold its operands.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "src/attention/attention_cpu.h"

namespace intarsia::attention {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

uint16_t FloatToBF16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// An array of a dtype whose elements are read and written as double. All NaN at first.
class Array {
 public:
  Array(DType dtype, int64_t size)
      : dtype_(dtype), bytes_(static_cast<size_t>(size * Bytes(dtype)), 0xff) {}
  void* data() { return bytes_.data(); }
  int64_t size() const { return static_cast<int64_t>(bytes_.size()) / Bytes(dtype_); }
  double Get(int64_t i) const { return Read(dtype_, bytes_.data(), i); }
  void Set(int64_t i, double x) {
    const float f = static_cast<float>(x);
    const _Float16 half = static_cast<_Float16>(f);
    const uint16_t bf16 = FloatToBF16(f);
    const void* from = dtype_ == DType::kF32   ? static_cast<const void*>(&f)
                       : dtype_ == DType::kF16 ? static_cast<const void*>(&half)
                                               : &bf16;
    std::memcpy(&bytes_[static_cast<size_t>(i * Bytes(dtype_))], from,
                static_cast<size_t>(Bytes(dtype_)));
  }
  static double Read(DType dtype, const void* data, int64_t i) {
    if (dtype == DType::kF32) return static_cast<const float*>(data)[i];
    if (dtype == DType::kF16) return static_cast<double>(static_cast<const _Float16*>(data)[i]);
    const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(data)[i]) << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
  }

 private:
  DType dtype_;
  std::vector<unsigned char> bytes_;
};

// int32 or int64 indices.
class Indices {
 public:
  IndexVector Set(const std::vector<int64_t>& values, bool wide) {
    wide_ = values;
    narrow_.assign(values.begin(), values.end());
    return {wide ? static_cast<const void*>(wide_.data()) : narrow_.data(), wide};
  }

 private:
  std::vector<int64_t> wide_;
  std::vector<int32_t> narrow_;
};

struct Result {
  std::vector<double> out, lse;
};

// The definition in attention.h, word for word and in f64.
class Reference {
 public:
  explicit Reference(const Params& params) : p_(params) {
    result_.out.assign(static_cast<size_t>(p_.num_tokens * p_.num_heads * p_.head_dim), 0.0);
    result_.lse.assign(static_cast<size_t>(p_.num_tokens * p_.num_heads), -kInf);
    const int64_t num_seqs = p_.num_seqs_device.data
                                 ? std::clamp<int64_t>(p_.num_seqs_device.At(0), 0, p_.num_seqs)
                                 : p_.num_seqs;
    int64_t q_begin = std::clamp<int64_t>(p_.cu_seqlens_q.At(0), 0, p_.num_tokens);
    for (int64_t i = 0; i < num_seqs; ++i) {
      const int64_t q_end = std::clamp<int64_t>(p_.cu_seqlens_q.At(i + 1), q_begin, p_.num_tokens);
      for (int64_t token = q_begin; token < q_end; ++token)
        for (int64_t head = 0; head < p_.num_heads; ++head)
          Row(i, token, head, token - q_begin, q_end - q_begin);
      q_begin = q_end;
    }
  }
  const Result& result() const { return result_; }

 private:
  int64_t LenK(int64_t i) const {
    const int64_t len =
        p_.seqused_k.data ? p_.seqused_k.At(i) : p_.cu_seqlens_k.At(i + 1) - p_.cu_seqlens_k.At(i);
    return std::clamp<int64_t>(len, 0, p_.max_len_k);
  }

  // The offset of a key in the cache, or -1.
  int64_t Offset(int64_t i, int64_t key, int64_t head) const {
    const CacheView& c = p_.cache;
    const int64_t layer = c.layer ? *c.layer : 0;
    if (layer < 0 || layer >= c.num_layers) return -1;
    int64_t page = 0, slot = key;
    if (p_.paged) {
      page = p_.page_table.At(i * p_.page_table_stride + key / c.page_size);
      slot = key % c.page_size;
    } else {
      slot += p_.cu_seqlens_k.At(i);
    }
    if (page < 0 || page >= c.num_pages || slot >= c.page_size) return -1;
    return c.k_strides.At(layer, page, slot, head);
  }

  void Row(int64_t i, int64_t token, int64_t head, int64_t row, int64_t len_q) {
    const int64_t len_k = LenK(i), position = row + len_k - len_q,
                  kv_head = head / (p_.num_heads / p_.num_kv_heads());
    std::vector<double> scores;
    std::vector<int64_t> offsets;
    for (int64_t key = 0; key < len_k; ++key) {
      if (p_.window_left >= 0 && position - key > p_.window_left) continue;
      if (p_.window_right >= 0 && key - position > p_.window_right) continue;
      const int64_t offset = Offset(i, key, kv_head);
      if (offset < 0) continue;
      double s = 0;
      for (int64_t n = 0; n < p_.head_dim; ++n)
        s += Array::Read(p_.dtype, p_.q, token * p_.q_token_stride + head * p_.q_head_stride + n) *
             Array::Read(p_.dtype, p_.cache.k, offset + n);
      s *= p_.scale;
      if (p_.softcap > 0) s = p_.softcap * std::tanh(s / p_.softcap);
      scores.push_back(s);
      offsets.push_back(offset);
    }
    if (scores.empty()) return;
    const double max = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    double* out = &result_.out[static_cast<size_t>((token * p_.num_heads + head) * p_.head_dim)];
    for (size_t j = 0; j < scores.size(); ++j) {
      const double weight = std::exp(scores[j] - max);
      sum += weight;
      for (int64_t n = 0; n < p_.head_dim; ++n)
        out[n] += weight * Array::Read(p_.dtype, p_.cache.v, offsets[j] + n);
    }
    for (int64_t n = 0; n < p_.head_dim; ++n) out[n] /= sum;
    result_.lse[static_cast<size_t>(head * p_.num_tokens + token)] = max + std::log(sum);
  }

  const Params& p_;
  Result result_;
};

}  // namespace
}  // namespace intarsia::attention
