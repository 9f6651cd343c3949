// Random ragged batches for checks of attention kernels: their arrays on the host and on the
// device, and the f64 reference.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "src/attention/attention.h"
#include "src/core/cuda/vec.cuh"
#include "src/core/dispatch.h"

namespace intarsia::attention {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline void Require(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}
inline void Require(const Status& status) {
  if (status.ok()) return;
  std::printf("%s\n", status.message.c_str());
  std::exit(1);
}

// About normal, and much faster than std::normal_distribution: the sum of four uniform numbers.
class Normal {
 public:
  explicit Normal(uint64_t seed) : state_(seed * 2 + 1) {}
  float operator()() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    const uint64_t x = state_ ^ state_ >> 29;
    const auto part = [&](int i) { return static_cast<int>(x >> (16 * i) & 0xffff); };
    return static_cast<float>(part(0) + part(1) + part(2) + part(3) - 2 * 65535) *
           (1.7320508f / 65536.0f);
  }

 private:
  uint64_t state_;
};

// Memory of the device.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size) : size_(size) {
    Require(cudaMalloc(&data_, std::max<size_t>(size, 1) * sizeof(T)));
  }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) {
    Require(cudaMemcpy(data_, host.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  DeviceArray(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }
  T* data() const { return data_; }
  void Poison() { Require(cudaMemset(data_, 0xff, size_ * sizeof(T))); }
  std::vector<T> ToHost() const {
    std::vector<T> host(size_);
    Require(cudaMemcpy(host.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  T* data_ = nullptr;
  size_t size_;
};

// One ragged batch in words.
struct Case {
  DType dtype = kBF16;
  int64_t h = 8, hk = 2, d = 128;
  std::vector<int64_t> len_q{}, len_k{};
  int64_t num_seqs = -1;  // that count; -1: all
  int64_t padding = 0;    // rows behind the last sequence
  int64_t page_size = 0;  // 0: dense
  int64_t window_left = -1, window_right = -1;
  float softcap = 0.0f, scale = 0.0f;  // 0: d ** -0.5
  bool wide = false, strided_q = false, combined = false, unaligned = false, with_lse = true;
  bool bad_page = false;
  int layer = -1;  // of 2; -1: no layer axis
  int64_t min_packed_rows = 1;
  bool fill_padding = true;
  double v_mean = 0.5;
};

// The arrays of a case, with NaN wherever nobody may look.
template <class T>
struct Batch {
  explicit Batch(const Case& c, uint32_t seed);

  Case c;
  int64_t b, t, tk, m = 0, num_pages = 1, page_size, q_token, slot, page, layer_size, head;
  int64_t offset;           // of all arrays of T, in elements: 1 spoils their alignment
  std::vector<T> q, cache;  // cache: K, then V unless combined
  int64_t v_at;
  std::vector<int64_t> cu_q{0}, cu_k{0}, seqused, table;

  int64_t num_seqs() const { return c.num_seqs < 0 ? b : c.num_seqs; }
  // The element where a key's K begins, or -1: bad page or layer.
  int64_t KeyAt(int64_t seq, int64_t key, int64_t kv_head) const {
    int64_t page_index = 0, slot_index = cu_k[seq] + key;
    if (c.page_size) {
      page_index = table[seq * m + key / page_size];
      slot_index = key % page_size;
    }
    if (page_index < 0 || page_index >= num_pages || c.layer > 1) return -1;
    return offset + std::max(c.layer, 0) * layer_size + page_index * page + slot_index * slot +
           kv_head * head;
  }
};

template <class T>
Batch<T>::Batch(const Case& in, uint32_t seed)
    : c(in), b(static_cast<int64_t>(in.len_q.size())), offset(in.unaligned ? 1 : 0) {
  std::mt19937 random(seed);
  Normal normal(seed);
  const T nan = static_cast<T>(std::numeric_limits<float>::quiet_NaN());
  for (int64_t i = 0; i < b; ++i) {
    cu_q.push_back(cu_q.back() + c.len_q[i]);
    cu_k.push_back(cu_k.back() + c.len_k[i]);
    seqused.push_back(c.len_k[i]);
    if (c.page_size) m = std::max(m, (c.len_k[i] + c.page_size - 1) / c.page_size + 1);
  }
  t = cu_q.back() + c.padding;
  tk = cu_k.back();
  q_token = c.strided_q ? c.h * c.d + 64 : c.h * c.d;
  q.assign(static_cast<size_t>(offset + t * q_token), nan);
  for (int64_t token = 0; token < cu_q.back(); ++token)
    for (int64_t i = 0; i < c.h * c.d; ++i)
      q[offset + token * q_token + i] = static_cast<T>(normal());

  page_size = c.page_size ? c.page_size : std::max<int64_t>(tk, 1);
  if (c.page_size) {
    num_pages = b * m + 3;
    std::vector<int64_t> shuffled(num_pages);
    for (int64_t i = 0; i < num_pages; ++i) shuffled[i] = i;
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    table.assign(shuffled.begin(), shuffled.begin() + b * m);
    // Entries that no sequence needs may hold anything.
    for (int64_t i = 0; i < b; ++i)
      for (int64_t j = (c.len_k[i] + page_size - 1) / page_size; j < m; ++j)
        table[i * m + j] = (i + j) % 2 ? -7 : num_pages + 5;
    if (c.bad_page) table[random() % (b * m)] = num_pages;
    if (c.bad_page) table[random() % (b * m)] = -1;
  }
  head = c.combined ? 2 * c.d : c.d;
  slot = c.hk * head;
  page = page_size * slot;
  layer_size = num_pages * page;
  const int64_t k_size = layer_size * (c.layer < 0 ? 1 : 2);
  v_at = c.combined ? c.d : k_size;
  cache.assign(static_cast<size_t>(offset + k_size * (c.combined ? 1 : 2)), nan);
  for (int64_t seq = 0; seq < b; ++seq) {
    for (int64_t key = 0; key < c.len_k[seq]; ++key) {
      for (int64_t kv_head = 0; kv_head < c.hk; ++kv_head) {
        const int64_t at = KeyAt(seq, key, kv_head);
        for (int64_t i = 0; at >= 0 && i < c.d; ++i) {
          cache[at + i] = static_cast<T>(normal());
          cache[at + v_at + i] = static_cast<T>(normal() + static_cast<float>(c.v_mean));
        }
      }
    }
  }
}

// One row of out and its lse, by the definition in attention.h.
template <class T>
double ReferenceRow(const Batch<T>& batch, int64_t seq, int64_t i, int64_t h,
                    std::vector<double>& out) {
  const Case& c = batch.c;
  const int64_t len_k = c.len_k[seq], kv_head = h / (c.h / c.hk),
                position = i + len_k - c.len_q[seq];
  const double scale = c.scale == 0.0f ? 1.0 / std::sqrt(static_cast<double>(c.d)) : c.scale;
  const T* q = &batch.q[batch.offset + (batch.cu_q[seq] + i) * batch.q_token + h * c.d];
  const int64_t first = c.window_left < 0 ? 0 : std::max<int64_t>(0, position - c.window_left);
  const int64_t last =
      c.window_right < 0 ? len_k - 1 : std::min(len_k - 1, position + c.window_right);
  std::vector<double> s(static_cast<size_t>(std::max<int64_t>(last - first + 1, 0)), -kInfinity);
  double maximum = -kInfinity, sum = 0.0;
  for (int64_t key = first; key <= last; ++key) {
    const int64_t at = batch.KeyAt(seq, key, kv_head);
    if (at < 0) continue;
    double dot = 0.0;
    for (int64_t x = 0; x < c.d; ++x)
      dot += double{static_cast<float>(q[x])} * static_cast<float>(batch.cache[at + x]);
    dot *= scale;
    s[key - first] = c.softcap > 0 ? c.softcap * std::tanh(dot / c.softcap) : dot;
    maximum = std::max(maximum, s[key - first]);
  }
  out.assign(static_cast<size_t>(c.d), 0.0);
  if (maximum == -kInfinity) return -kInfinity;
  for (int64_t key = first; key <= last; ++key) {
    const double p = std::exp(s[key - first] - maximum);
    if (p == 0.0) continue;
    sum += p;
    const int64_t at = batch.KeyAt(seq, key, kv_head) + batch.v_at;
    for (int64_t x = 0; x < c.d; ++x) out[x] += p * static_cast<float>(batch.cache[at + x]);
  }
  for (double& x : out) x /= sum;
  return maximum + std::log(sum);
}

inline std::vector<int32_t> Narrow(const std::vector<int64_t>& v) { return {v.begin(), v.end()}; }

// An index vector of either width on the device.
struct DeviceIndices {
  DeviceIndices(const std::vector<int64_t>& v, bool wide) : wide(wide), w(v), n(Narrow(v)) {}
  IndexVector view() const { return {wide ? static_cast<void*>(w.data()) : n.data(), wide}; }
  bool wide;
  DeviceArray<int64_t> w;
  DeviceArray<int32_t> n;
};

// A batch on the device, and the Params that name its parts.
template <class T>
struct OnDevice {
  explicit OnDevice(const Batch<T>& x)
      : q(x.q),
        cache(x.cache),
        out(static_cast<size_t>(x.offset + x.t * x.c.h * x.c.d)),
        lse(static_cast<size_t>(x.t * x.c.h)),
        layer(std::vector<int32_t>{x.c.layer}),
        cu_q(x.cu_q, x.c.wide),
        cu_k(x.cu_k, x.c.wide),
        seqused(x.seqused, x.c.wide),
        table(x.table, x.c.wide),
        num_seqs({x.num_seqs()}, x.c.wide) {
    const Case& c = x.c;
    p.dtype = c.dtype;
    p.q = q.data() + x.offset;
    p.q_token_stride = x.q_token;
    p.q_head_stride = c.d;
    p.out = out.data() + x.offset;
    p.lse = c.with_lse ? lse.data() : nullptr;
    p.num_tokens = x.t;
    p.num_seqs = x.b;
    p.num_heads = c.h;
    p.head_dim = c.d;
    p.max_len_k = c.page_size ? x.m * c.page_size : x.tk;
    p.cu_seqlens_q = cu_q.view();
    if (c.num_seqs >= 0) p.num_seqs_device = num_seqs.view();
    p.cache = {.dtype = c.dtype,
               .k = cache.data() + x.offset,
               .v = cache.data() + x.offset + x.v_at,
               .num_pages = x.num_pages,
               .page_size = c.page_size ? c.page_size : x.tk,
               .num_kv_heads = c.hk,
               .num_layers = c.layer < 0 ? 1 : 2,
               .head_dim = c.d,
               .v_head_dim = c.d,
               .k_strides = {x.layer_size, x.page, x.slot, x.head},
               .v_strides = {x.layer_size, x.page, x.slot, x.head},
               .layer = c.layer < 0 ? nullptr : layer.data()};
    if (c.page_size) {
      p.paged = true;
      p.page_table = table.view();
      p.page_table_stride = p.pages_per_seq = x.m;
      p.seqused_k = seqused.view();
    } else {
      p.cu_seqlens_k = cu_k.view();
    }
    p.scale = c.scale == 0.0f ? 1.0f / std::sqrt(static_cast<float>(c.d)) : c.scale;
    p.softcap = c.softcap;
    p.window_left = c.window_left;
    p.window_right = c.window_right;
  }
  DeviceArray<T> q, cache, out;
  DeviceArray<float> lse;
  DeviceArray<int32_t> layer;
  DeviceIndices cu_q, cu_k, seqused, table, num_seqs;
  Params p;
};

inline std::string Describe(const Case& c) {
  char text[256];
  std::snprintf(text, sizeof text,
                "%-4s h%-2d hk%d d%-3d b%-2d %s%-2d win %d,%d cap %g%s%s%s%s%s layer %d min %d",
                std::string(Name(c.dtype)).c_str(), int(c.h), int(c.hk), int(c.d),
                int(c.len_q.size()), c.page_size ? "page" : "dense ", int(c.page_size),
                int(c.window_left), int(c.window_right), c.softcap, c.wide ? " wide" : "",
                c.strided_q ? " strided" : "", c.combined ? " combined" : "",
                c.unaligned ? " unaligned" : "", c.bad_page ? " bad page" : "", c.layer,
                int(c.min_packed_rows));
  return text;
}

}  // namespace intarsia::attention
