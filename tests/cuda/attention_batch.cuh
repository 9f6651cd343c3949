// Random ragged batches for checks of attention kernels: their arrays on the host and on the
// device, and the f64 reference.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "src/attention/attention.h"
#include "src/core/cuda/launch.h"
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

// Waits for what is in flight on `stream`. A kernel that hangs ends the program with 2, and `what`
// says where. Without destructors: they would wait for the kernel.
inline void Await(cudaStream_t stream, const std::string& what, int seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(seconds);
  cudaEvent_t done;
  Require(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
  Require(cudaEventRecord(done, stream));
  cudaError_t error;
  while ((error = cudaEventQuery(done)) == cudaErrorNotReady) {
    if (Clock::now() > end) {
      std::printf("HANG after %d s: %s\n", seconds, what.c_str());
      std::fflush(stdout);
      std::_Exit(2);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  if (error != cudaSuccess) std::printf("in %s\n", what.c_str());
  Require(error);
  Require(cudaEventDestroy(done));
}

inline CudaContext ContextOn(cudaStream_t stream = nullptr) {
  CudaContext context;
  Require(cuda::MakeContext(stream, context));
  return context;
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

// An array of any dtype: its bits, and what they mean. NaN until it is set; all bits set is NaN in
// every type.
class Elements {
 public:
  Elements() = default;
  Elements(DType dtype, size_t size)
      : dtype_(dtype), bits_(size * Bytes(dtype), char(0xff)), values_(size, std::nanf("")) {}
  Elements(DType dtype, std::vector<char> bits)
      : dtype_(dtype), bits_(std::move(bits)), values_(bits_.size() / Bytes(dtype)) {
    WithType([&]<class T>() {
      for (size_t i = 0; i < values_.size(); ++i) {
        T x;
        std::memcpy(&x, &bits_[i * sizeof(T)], sizeof(T));
        values_[i] = static_cast<float>(x);
      }
    });
  }
  void Set(size_t i, float value) {
    WithType([&]<class T>() {
      const T x(value);
      std::memcpy(&bits_[i * sizeof(T)], &x, sizeof(T));
      values_[i] = static_cast<float>(x);
    });
  }
  float operator[](size_t i) const { return values_[i]; }
  const float* values() const { return values_.data(); }
  const std::vector<char>& bits() const { return bits_; }

 private:
  template <class Fn>
  void WithType(Fn&& fn) {
    Require(DispatchDType<kF32, kF16, kBF16, kF8E4M3, kF8E5M2>("array", dtype_, [&]<DType kType>() {
      fn.template operator()<cuda::DeviceT<kType>>();
      return Status();
    }));
  }
  DType dtype_ = kF32;
  std::vector<char> bits_;
  std::vector<float> values_;
};

// How many scales or slopes there are.
enum class Per { kNone, kTensor, kHead, kSequence };

// One ragged batch in words.
struct Case {
  DType dtype = kBF16, kv = DType::kOther, out = DType::kOther;  // kOther: as dtype
  int64_t h = 8, hk = 2, d = 128, dv = 0;                        // dv = 0: as d
  std::vector<int64_t> len_q{}, len_k{};  // len_k: of the keys that are there
  int64_t num_seqs = -1;                  // that count; -1: all
  int64_t front = 0, padding = 0;         // rows in front of and behind the sequences
  bool falling = false;                   // cu_seqlens_q falls, and points beyond q
  int64_t page_size = 0;                  // 0: dense
  int64_t window_left = -1, window_right = -1;
  float softcap = 0.0f, scale = 0.0f;  // 0: d ** -0.5
  float q_size = 1.0f;                 // queries' standard deviation
  float alike = 0.0f;                  // what all elements of q and K are instead, unless 0
  bool wide = false, strided_q = false, combined = false, unaligned = false, with_lse = true;
  bool own_v = false;  // V has strides of its own
  bool bad_page = false;
  int layer = -1;  // of 2; -1: no layer axis
  Per scales = Per::kNone, alibi = Per::kNone;
  bool sinks = false, leftpad = false;
  int64_t min_packed_rows = 1;
  bool fill_padding = true;
  double v_mean = 0.5;

  DType kv_dtype() const { return kv == DType::kOther ? dtype : kv; }
  DType out_dtype() const { return out == DType::kOther ? dtype : out; }
  int64_t v_dim() const { return dv ? dv : d; }
};

// f32 numbers, one for all, for each head, or for each head of each sequence.
struct Numbers {
  Numbers(Per in, int64_t b, int64_t heads, std::mt19937& random) : per(in), heads(heads) {
    const int64_t count = per == Per::kNone     ? 0
                          : per == Per::kTensor ? 1
                          : per == Per::kHead   ? heads
                                                : b * heads;
    for (int64_t i = 0; i < count; ++i)
      at.push_back(0.5f + static_cast<float>(random() % 100) / 100);
  }
  double At(int64_t seq, int64_t head, double otherwise) const {
    if (per == Per::kNone) return otherwise;
    return at[(per == Per::kSequence ? seq * heads : 0) + (per == Per::kTensor ? 0 : head)];
  }
  ScaleView View(const DeviceArray<float>& device) const {
    if (per == Per::kNone) return {};
    return {device.data(), per == Per::kSequence ? heads : 0, per == Per::kTensor ? 0 : 1};
  }
  Per per;
  int64_t heads;
  std::vector<float> at;
};

// The arrays of a case, with NaN wherever nobody may look.
struct Batch {
  Batch(const Case& c, uint32_t seed);

  Case c;
  std::mt19937 random;
  int64_t b, t = 0, tk = 0, m = 0, num_pages = 1, page_size, q_token;
  CacheStrides k_strides, v_strides;
  int64_t offset;     // of q, cache and out, in elements: 1 spoils their alignment
  Elements q, cache;  // cache: K, then V unless combined
  int64_t v_at = 0;   // where V begins
  std::vector<int64_t> begin_q{}, cu_q{}, cu_k{0}, leftpad{}, seqused{}, table{};
  Numbers q_scale, k_scale, v_scale, alibi;
  std::vector<float> sinks{};

  int64_t num_seqs() const { return c.num_seqs < 0 ? b : c.num_seqs; }
  // The sequence of a row of q, or -1.
  int64_t SequenceOf(int64_t token) const {
    for (int64_t seq = 0; seq < num_seqs(); ++seq)
      if (token >= begin_q[seq] && token < begin_q[seq] + c.len_q[seq]) return seq;
    return -1;
  }
  // The elements where a key's K and V begin; false: bad page or layer.
  bool KeyAt(int64_t seq, int64_t key, int64_t kv_head, int64_t& k, int64_t& v) const {
    int64_t page = 0, slot = leftpad[seq] + key;
    if (c.page_size) {
      page = table[seq * m + slot / page_size];
      slot %= page_size;
    } else {
      slot += cu_k[seq];
    }
    if (page < 0 || page >= num_pages || c.layer > 1) return false;
    k = offset + k_strides.At(std::max(c.layer, 0), page, slot, kv_head);
    v = offset + v_at + v_strides.At(std::max(c.layer, 0), page, slot, kv_head);
    return true;
  }

 private:
  void MakeLengths();
  void MakePages();
  void MakeCache(Normal& normal);
};

inline Batch::Batch(const Case& in, uint32_t seed)
    : c(in),
      random(seed),
      b(static_cast<int64_t>(in.len_q.size())),
      page_size(in.page_size),
      q_token(in.h * in.d + (in.strided_q ? 64 : 0)),
      offset(in.unaligned ? 1 : 0),
      q_scale(IsFp8(in.dtype) ? in.scales : Per::kNone, b, in.hk, random),
      k_scale(in.scales, b, in.hk, random),
      v_scale(in.scales, b, in.hk, random),
      alibi(in.alibi, b, in.h, random) {
  Normal normal(seed);
  MakeLengths();
  q = Elements(c.dtype, offset + t * q_token);
  for (int64_t seq = 0; seq < b; ++seq)
    for (int64_t token = begin_q[seq]; token < begin_q[seq] + c.len_q[seq]; ++token)
      for (int64_t i = 0; i < c.h * c.d; ++i)
        q.Set(offset + token * q_token + i, c.alike != 0.0f ? c.alike : c.q_size * normal());
  if (c.page_size)
    MakePages();
  else
    page_size = tk;
  MakeCache(normal);
  for (int64_t h = 0; c.sinks && h < c.h; ++h) sinks.push_back(3 * normal());
}

// cu_seqlens_q so that its running maximum gives the sequences their lengths.
inline void Batch::MakeLengths() {
  int64_t end = c.front;
  cu_q.push_back(c.front ? c.front : c.falling ? -3 : 0);
  for (int64_t i = 0; i < b; ++i) {
    begin_q.push_back(end);
    end += c.len_q[i];
    const bool falls = c.falling && c.len_q[i] == 0;
    cu_q.push_back(falls ? static_cast<int64_t>(random() % (end + 9)) - 9 : end);
    leftpad.push_back(c.leftpad ? static_cast<int64_t>(random() % 40) : 0);
    const int64_t slots = c.len_k[i] + leftpad[i];
    cu_k.push_back(cu_k.back() + slots);
    seqused.push_back(slots);
    if (c.page_size) m = std::max(m, (slots + c.page_size - 1) / c.page_size + 1);
  }
  t = end + c.padding;
  if (c.falling && c.padding == 0 && c.num_seqs < 0 && cu_q.back() == t) cu_q.back() = t + 1000;
  tk = cu_k.back();
}

inline void Batch::MakePages() {
  num_pages = b * m + 3;
  std::vector<int64_t> shuffled(num_pages);
  for (int64_t i = 0; i < num_pages; ++i) shuffled[i] = i;
  std::shuffle(shuffled.begin(), shuffled.end(), random);
  table.assign(shuffled.begin(), shuffled.begin() + b * m);
  // Entries that no sequence needs may hold anything.
  for (int64_t i = 0; i < b; ++i)
    for (int64_t j = (seqused[i] + page_size - 1) / page_size; j < m; ++j)
      table[i * m + j] = (i + j) % 2 ? -7 : num_pages + 5;
  if (c.bad_page) table[random() % (b * m)] = num_pages;
  if (c.bad_page) table[random() % (b * m)] = -1;
}

inline void Batch::MakeCache(Normal& normal) {
  const auto strides = [&](int64_t row) {  // of heads, `row` elements apart
    const int64_t slot = c.hk * row, page = page_size * slot;
    return CacheStrides{num_pages * page, page, slot, row};
  };
  const int64_t layers = c.layer < 0 ? 1 : 2;
  k_strides = strides(c.combined ? 2 * c.d : c.d);
  v_strides = c.combined ? k_strides : strides(c.v_dim() + (c.own_v ? 16 : 0));
  v_at = c.combined ? c.d : layers * k_strides.layer;
  cache = Elements(c.kv_dtype(),
                   offset + layers * (k_strides.layer + (c.combined ? 0 : v_strides.layer)));
  for (int64_t seq = 0; seq < b; ++seq) {
    for (int64_t key = 0; key < c.len_k[seq]; ++key) {
      for (int64_t kv_head = 0; kv_head < c.hk; ++kv_head) {
        int64_t k, v;
        if (!KeyAt(seq, key, kv_head, k, v)) continue;
        for (int64_t i = 0; i < c.d; ++i) cache.Set(k + i, c.alike != 0.0f ? c.alike : normal());
        for (int64_t i = 0; i < c.v_dim(); ++i)
          cache.Set(v + i, normal() + static_cast<float>(c.v_mean));
      }
    }
  }
}

// One row of out and its lse, by the definition in attention.h.
inline double ReferenceRow(const Batch& batch, int64_t seq, int64_t i, int64_t h,
                           std::vector<double>& out) {
  const Case& c = batch.c;
  const int64_t len_k = c.len_k[seq], kv_head = h / (c.h / c.hk),
                position = i + len_k - c.len_q[seq];
  const double scale = (c.scale == 0.0f ? 1.0 / std::sqrt(static_cast<double>(c.d)) : c.scale) *
                       batch.q_scale.At(seq, kv_head, 1.0) * batch.k_scale.At(seq, kv_head, 1.0);
  const double slope = batch.alibi.At(seq, h, 0.0);
  const double sink = c.sinks ? batch.sinks[h] : -kInfinity;
  const float* const q =
      batch.q.values() + batch.offset + (batch.begin_q[seq] + i) * batch.q_token + h * c.d;
  const int64_t first = c.window_left < 0 ? 0 : std::max<int64_t>(0, position - c.window_left);
  const int64_t last =
      c.window_right < 0 ? len_k - 1 : std::min(len_k - 1, position + c.window_right);
  std::vector<double> s(static_cast<size_t>(std::max<int64_t>(last - first + 1, 0)), -kInfinity);
  double maximum = sink;
  int64_t k, v;
  for (int64_t key = first; key <= last; ++key) {
    if (!batch.KeyAt(seq, key, kv_head, k, v)) continue;
    double dot = 0.0;
    for (int64_t x = 0; x < c.d; ++x) dot += double{q[x]} * batch.cache[k + x];
    dot *= scale;
    if (c.softcap > 0) dot = c.softcap * std::tanh(dot / c.softcap);
    s[key - first] = dot - slope * static_cast<double>(std::abs(position - key));
    maximum = std::max(maximum, s[key - first]);
  }
  out.assign(static_cast<size_t>(c.v_dim()), 0.0);
  if (maximum == -kInfinity) return -kInfinity;
  double sum = std::exp(sink - maximum);
  for (int64_t key = first; key <= last; ++key) {
    const double p = std::exp(s[key - first] - maximum);
    if (p == 0.0 || !batch.KeyAt(seq, key, kv_head, k, v)) continue;
    sum += p;
    for (int64_t x = 0; x < c.v_dim(); ++x) out[x] += p * batch.cache[v + x];
  }
  for (double& x : out) x *= batch.v_scale.At(seq, kv_head, 1.0) / sum;
  return maximum + std::log(sum);
}

}  // namespace intarsia::attention
