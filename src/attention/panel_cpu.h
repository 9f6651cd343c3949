// A panel: up to two registers' worth of rows of one sequence and KV head, with their softmax in
// progress (Milakov and Gimelshein, arXiv:1805.02867; in blocks as FlashAttention does it,
// arXiv:2205.14135). For *_cpu.cc files only.
//
// For each row, over the keys so far: max = max_j s_j, sum = sum_j exp(s_j - max), and
// out = sum_j exp(s_j - max) v_j. Scores are kept transposed, [keys, rows], so that
//   - lanes are rows: maxima and sums over keys need no exchange between lanes,
//   - with many rows K is never transposed: K Q^T takes its elements singly, and Q^T is made once,
//   - with few rows (decode) registers run along d, and a register of scores holds several keys.
#pragma once
#include <cmath>
#include <limits>

#include "src/attention/attention_cpu.h"
#include "src/attention/matmul_cpu.h"
#include "src/core/cpu/simd.h"

namespace intarsia::attention {
namespace {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The keys [first, first + count) of one sequence and KV head; rows `stride` elements apart.
template <class T>
struct KeyBlock {
  int64_t first = 0, count = 0;
  const T* k = nullptr;
  const T* v = nullptr;
  int64_t stride = 0;

  // Leaves those within `range`.
  void Clip(const KeyRange& range) {
    const int64_t skipped = std::clamp<int64_t>(range.begin - first, 0, count);
    count = std::max<int64_t>(0, std::min(first + count, range.end) - first - skipped);
    first += skipped;
    k += skipped * stride;
    v += skipped * stride;
  }
};

// fn folded over the lanes whose numbers are equal modulo kWidth, in all of them.
template <int kWidth, int kDistance = kLanes / 2, class Fn>
[[gnu::always_inline]] inline VecF FoldLanes(VecF x, Fn fn) {
  if constexpr (kDistance < kWidth)
    return x;
  else
    return FoldLanes<kWidth, kDistance / 2>(fn(x, SwapLanes<kDistance>(x)), fn);
}

template <int kWidth>
class Panel {
  static_assert(kWidth <= 2 * kLanes && kWidth <= kMaxPanelRows && kTileRows % kWidth == 0);
  // Fewer rows than lanes: a register of scores holds kWidth rows of each of several keys.
  static constexpr bool kFewRows = kWidth < kLanes;
  static constexpr int kKeysPerVec = kFewRows ? kLanes / kWidth : 1;
  static constexpr int kVecs = kFewRows ? 1 : kWidth / kLanes;

 public:
  static constexpr int64_t kScoreFloats = kTileKeys * kWidth;

  // Begins rows [row, row + num_rows) of the sequence, num_rows <= kWidth; the panel's other rows
  // are zeros that nobody asks for. `memory` holds 2 * kWidth * padded_d floats.
  template <class T>
  void Start(const CpuWork& work, const CpuSequence& sequence, int64_t head, int64_t row,
             int64_t num_rows, float* memory) {
    d_ = work.params.head_dim;
    padded_d_ = work.padded_d;
    softcap_ = work.params.softcap;
    q_ = memory;
    out_ = memory + kWidth * padded_d_;
    std::fill(memory, memory + 2 * kWidth * padded_d_, 0.0f);
    for (int64_t i = 0; i < num_rows; ++i) LoadQuery<T>(work, sequence, head, row + i, i);
    for (int lane = 0; lane < kVecs * kLanes; ++lane) {
      const int64_t lane_row = row + std::min<int64_t>(lane % kWidth, num_rows - 1);
      const KeyRange keys = VisibleKeys(work.params, sequence, lane_row / work.group);
      begins_[lane / kLanes][lane % kLanes] =
          static_cast<int32_t>(std::min(keys.begin, sequence.len_k));
      ends_[lane / kLanes][lane % kLanes] = static_cast<int32_t>(std::max<int64_t>(keys.end, 0));
    }
    // The window only moves right from row to row.
    some_ = {begins_[0][0], ends_[kVecs - 1][kLanes - 1]};
    all_ = {begins_[kVecs - 1][kLanes - 1], ends_[0][0]};
    for (int i = 0; i < kVecs; ++i) max_[i] = Splat(-kInfinity), sum_[i] = VecF{};
  }

  // Takes in some keys. `scores` holds kScoreFloats.
  template <class T>
  void Attend(KeyBlock<T> keys, float* scores) {
    keys.Clip(some_);
    if (keys.count == 0) return;
    const int64_t keys_end = keys.first + keys.count;
    Score(keys, scores);
    if (softcap_ > 0) SoftCap(keys.count, scores);
    if (keys.first < all_.begin || keys_end > all_.end || keys.count % kKeysPerVec)
      Mask(keys.first, keys.count, scores);
    alignas(64) float decay[kVecs * kLanes];
    Softmax(keys.count, scores, decay);
    Accumulate(keys, scores, decay);
  }

  // Of row i: the softmax's maximum and sum, and the weighted sum of V.
  const float* out(int64_t i) const { return out_ + i * padded_d_; }
  float max(int64_t i) const { return max_[i / kLanes][i % kLanes]; }
  float sum(int64_t i) const {
    return FoldLanes<kWidth>(sum_[i / kLanes], [](VecF a, VecF b) { return a + b; })[i % kLanes];
  }

 private:
  // Row `row` of the sequence becomes row i of Q, as f32 and scaled: [kWidth, padded_d] or,
  // transposed, [d, kWidth].
  template <class T>
  void LoadQuery(const CpuWork& work, const CpuSequence& sequence, int64_t head, int64_t row,
                 int64_t i) {
    const Params& params = work.params;
    const T* query = static_cast<const T*>(params.q) +
                     (sequence.q_begin + row / work.group) * params.q_token_stride +
                     (head * work.group + row % work.group) * params.q_head_stride;
    ForLanes(d_, [&](int64_t n, int lanes) {
      const VecF x = LoadN(query + n, lanes) * params.scale;
      if constexpr (kFewRows) {
        Store(q_ + i * padded_d_ + n, x);
      } else {
        for (int lane = 0; lane < lanes; ++lane) q_[(n + lane) * kWidth + i] = x[lane];
      }
    });
  }

  template <class T>
  void Score(const KeyBlock<T>& keys, float* scores) const {
    if constexpr (kFewRows) {
      for (int64_t j = 0; j < keys.count; j += kKeysPerVec) {
        const T* rows[kKeysPerVec];  // those after the last are masked later
        for (int i = 0; i < kKeysPerVec; ++i)
          rows[i] = keys.k + std::min(j + i, keys.count - 1) * keys.stride;
        Store(scores + j * kWidth, DotProducts<kWidth>(q_, padded_d_, rows, padded_d_));
      }
    } else {
      ForBlocks<kAccumulators / kVecs>(keys.count, [&]<int kKeys>(int64_t j) {
        VecF sums[kKeys][kVecs] = {};
        Multiply({keys.k + j * keys.stride, keys.stride, 1}, q_, kWidth, d_, sums);
        for (int i = 0; i < kKeys; ++i)
          for (int v = 0; v < kVecs; ++v) Store(scores + (j + i) * kWidth + v * kLanes, sums[i][v]);
      });
    }
  }

  // fn(register of scores, which register of the rows, first key) for every register.
  template <class Fn>
  [[gnu::always_inline]] static void ForScores(int64_t count, float* scores, Fn fn) {
    for (int64_t j = 0; j < count; j += kKeysPerVec)
      for (int v = 0; v < kVecs; ++v) fn(scores + j * kWidth + v * kLanes, v, j);
  }

  void SoftCap(int64_t count, float* scores) const {
    ForScores(count, scores,
              [&](float* s, int, int64_t) { Store(s, Tanh(Load(s) / softcap_) * softcap_); });
  }

  void Mask(int64_t first, int64_t count, float* scores) const {
    VecI key_in_vec;
    for (int lane = 0; lane < kLanes; ++lane) key_in_vec[lane] = lane / kWidth;
    const int32_t end = static_cast<int32_t>(first + count);
    ForScores(count, scores, [&](float* s, int v, int64_t j) {
      const VecI key = key_in_vec + static_cast<int32_t>(first + j);
      const VecI seen = (key >= begins_[v]) & (key < ends_[v]) & (key < end);
      Store(s, Select(seen, Load(s), Splat(-kInfinity)));
    });
  }

  // scores = exp(scores - max) with the new max; what was summed with the old one counts `decay`
  // times.
  void Softmax(int64_t count, float* scores, float* decay) {
    VecF max[kVecs], sum[kVecs] = {}, shift[kVecs];
    for (int v = 0; v < kVecs; ++v) max[v] = max_[v];
    ForScores(count, scores, [&](float* s, int v, int64_t) { max[v] = Max(max[v], Load(s)); });
    for (int v = 0; v < kVecs; ++v) {
      max[v] = FoldLanes<kWidth>(max[v], [](VecF a, VecF b) { return Max(a, b); });
      // 0 for a row that has seen nothing, because -inf - -inf is NaN.
      shift[v] = max[v] == -kInfinity ? VecF{} : max[v];
    }
    ForScores(count, scores, [&](float* s, int v, int64_t) {
      const VecF p = Exp(Load(s) - shift[v]);
      sum[v] += p;
      Store(s, p);
    });
    for (int v = 0; v < kVecs; ++v) {
      const VecF factor = Exp(max_[v] - shift[v]);
      sum_[v] = sum_[v] * factor + sum[v];
      max_[v] = max[v];
      Store(decay + v * kLanes, factor);
    }
  }

  // out = decay * out + scores^T V
  template <class T>
  void Accumulate(const KeyBlock<T>& keys, const float* scores, const float* decay) {
    constexpr int kRows = std::min(kWidth, kAccumulators / 2);
    ForBlocks<kAccumulators / kRows>(padded_d_ / kLanes, [&]<int kColumns>(int64_t column) {
      for (int row = 0; row < kWidth; row += kRows) {
        float* out = out_ + row * padded_d_ + column * kLanes;
        VecF sums[kRows][kColumns];
        for (int i = 0; i < kRows; ++i)
          for (int c = 0; c < kColumns; ++c)
            sums[i][c] = Load(out + i * padded_d_ + c * kLanes) * decay[row + i];
        Multiply({scores + row, 1, kWidth}, keys.v + column * kLanes, keys.stride, keys.count,
                 sums);
        for (int i = 0; i < kRows; ++i)
          for (int c = 0; c < kColumns; ++c) Store(out + i * padded_d_ + c * kLanes, sums[i][c]);
      }
    });
  }

  int64_t d_ = 0, padded_d_ = 0;
  float softcap_ = 0;
  float* q_ = nullptr;
  float* out_ = nullptr;          // [kWidth, padded_d]
  VecF max_[kVecs], sum_[kVecs];  // with few rows: sum_ only over the keys of its own lane
  VecI begins_[kVecs], ends_[kVecs];
  KeyRange some_{}, all_{};  // keys that some row, and that all rows see
};

}  // namespace
}  // namespace intarsia::attention
