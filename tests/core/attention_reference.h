// Attention in f64 by its definition in attention.h, for tests, and arrays to hold its operands.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "src/attention/cpu/forward.h"
#include "src/core/native_f16.h"

namespace intarsia::attention {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

uint16_t FloatToBF16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// OCP's fp8 formats: a sign, an exponent, `mantissa` bits.
double Fp8ToDouble(DType dtype, uint8_t bits) {
  const bool e4m3 = dtype == DType::kF8E4M3;
  const int mantissa = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15;
  const int exponent = (bits & 0x7f) >> mantissa, fraction = bits & ((1 << mantissa) - 1);
  const double sign = bits & 0x80 ? -1 : 1;
  if (e4m3 && (bits & 0x7f) == 0x7f) return std::numeric_limits<double>::quiet_NaN();
  if (!e4m3 && exponent == 31)
    return fraction ? std::numeric_limits<double>::quiet_NaN() : sign * kInf;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - mantissa);
  return sign * std::ldexp((1 << mantissa) + fraction, exponent - bias - mantissa);
}

// The code of the largest number that is not above |x|, with x's sign.
uint8_t DoubleToFp8(DType dtype, double x) {
  uint8_t code = 0;  // numbers ascend with their codes
  for (int bit = 64; bit > 0; bit /= 2)
    if (Fp8ToDouble(dtype, static_cast<uint8_t>(code | bit)) <= std::abs(x))
      code = static_cast<uint8_t>(code | bit);
  return static_cast<uint8_t>(code | (x < 0 ? 0x80 : 0));
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
    const NativeF16 half = static_cast<NativeF16>(f);
    const uint16_t bf16 = FloatToBF16(f);
    const uint8_t fp8 = DoubleToFp8(dtype_, x);
    const void* from = dtype_ == DType::kF32    ? static_cast<const void*>(&f)
                       : dtype_ == DType::kF16  ? static_cast<const void*>(&half)
                       : dtype_ == DType::kBF16 ? static_cast<const void*>(&bf16)
                                                : &fp8;
    std::memcpy(&bytes_[static_cast<size_t>(i * Bytes(dtype_))], from,
                static_cast<size_t>(Bytes(dtype_)));
  }
  static double Read(DType dtype, const void* data, int64_t i) {
    if (dtype == DType::kF32) return static_cast<const float*>(data)[i];
    if (dtype == DType::kF16) return static_cast<double>(static_cast<const NativeF16*>(data)[i]);
    if (IsFp8(dtype)) return Fp8ToDouble(dtype, static_cast<const uint8_t*>(data)[i]);
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
    result_.out.assign(static_cast<size_t>(p_.num_tokens * p_.num_heads * p_.cache.v_head_dim),
                       0.0);
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
  // The slots of a sequence's keys, in its pages or in dense K and V.
  struct Slots {
    int64_t begin, end;
  };
  Slots SlotsOf(int64_t i) const {
    const int64_t begin = p_.paged ? 0 : KeyStart(i);
    const int64_t room = p_.paged ? p_.max_len_k : KeyStart(i + 1) - begin;
    const int64_t len = p_.seqused_k.data ? p_.seqused_k.At(i) : room;
    const int64_t end = begin + std::clamp<int64_t>(len, 0, room);
    const int64_t leftpad = p_.leftpad_k.data ? p_.leftpad_k.At(i) : 0;
    return {begin + std::clamp<int64_t>(leftpad, 0, end - begin), end};
  }

  // cu_seqlens_k[i] as it counts: the largest so far, within the rows.
  int64_t KeyStart(int64_t i) const {
    int64_t start = 0;
    for (int64_t j = 0; j <= i; ++j)
      start = std::max(start, std::min(p_.cu_seqlens_k.At(j), p_.cache.page_size));
    return start;
  }

  struct Key {
    double score;
    int64_t v;  // where its V starts
  };

  // Appends the key if its page and its layer exist.
  void Add(int64_t i, int64_t slot, int64_t token, int64_t head, double position_less_key,
           std::vector<Key>& keys) const {
    const CacheView& c = p_.cache;
    const int64_t layer = c.layer ? *c.layer : 0, kv_head = head / (p_.num_heads / c.num_kv_heads);
    int64_t page = 0;
    if (p_.paged) {
      page = p_.page_table.At(i * p_.page_table_stride + slot / c.page_size);
      slot %= c.page_size;
    }
    if (layer < 0 || layer >= c.num_layers || page < 0 || page >= c.num_pages) return;
    const int64_t q = token * p_.q_token_stride + head * p_.q_head_stride,
                  k = c.k_strides.At(layer, page, slot, kv_head);
    double s = 0;
    for (int64_t n = 0; n < p_.head_dim; ++n)
      s += Array::Read(p_.dtype, p_.q, q + n) * Array::Read(c.dtype, c.k, k + n);
    s *= static_cast<double>(p_.scale) * p_.q_scale.At(i, kv_head) * p_.k_scale.At(i, kv_head);
    if (p_.softcap > 0) s = p_.softcap * std::tanh(s / p_.softcap);
    s -= p_.alibi_slopes.At(i, head, 0.0f) * std::abs(position_less_key);
    keys.push_back({s, c.v_strides.At(layer, page, slot, kv_head)});
  }

  void Row(int64_t i, int64_t token, int64_t head, int64_t row, int64_t len_q) {
    const Slots slots = SlotsOf(i);
    const int64_t position = row + slots.end - slots.begin - len_q, dv = p_.cache.v_head_dim;
    std::vector<Key> keys;
    for (int64_t key = 0; key < slots.end - slots.begin; ++key) {
      if (p_.window_left >= 0 && position - key > p_.window_left) continue;
      if (p_.window_right >= 0 && key - position > p_.window_right) continue;
      Add(i, slots.begin + key, token, head, static_cast<double>(position - key), keys);
    }
    const double sink = p_.sinks ? p_.sinks[head] : -kInf;
    double max = sink;
    for (const Key& key : keys) max = std::max(max, key.score);
    if (max == -kInf) return;
    double sum = std::exp(sink - max);
    double* out = &result_.out[static_cast<size_t>((token * p_.num_heads + head) * dv)];
    for (const Key& key : keys) {
      const double weight = std::exp(key.score - max);
      sum += weight;
      for (int64_t n = 0; n < dv; ++n)
        out[n] += weight * Array::Read(p_.cache.dtype, p_.cache.v, key.v + n);
    }
    const double v_scale = p_.v_scale.At(i, head / (p_.num_heads / p_.num_kv_heads()));
    for (int64_t n = 0; n < dv; ++n) out[n] *= v_scale / sum;
    result_.lse[static_cast<size_t>(head * p_.num_tokens + token)] = max + std::log(sum);
  }

  const Params& p_;
  Result result_;
};

}  // namespace
}  // namespace intarsia::attention
