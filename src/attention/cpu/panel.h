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
#include "src/attention/cpu/forward.h"
#include "src/attention/cpu/keys.h"
#include "src/attention/cpu/matmul.h"
#include "src/attention/cpu/rows.h"
#include "src/core/cpu/simd.h"

namespace intarsia::attention {
namespace {

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

  // What a panel keeps for its rows besides registers.
  static int64_t MemoryFloats(const CpuWork& work) {
    return kWidth * (work.padded_d + work.padded_dv);
  }

  // Begins rows [row, row + num_rows) of the sequence, num_rows <= kWidth; the panel's other rows
  // are zeros that nobody asks for. `memory` holds MemoryFloats.
  void Start(const CpuWork& work, const CpuSequence& sequence, int64_t head, int64_t row,
             int64_t num_rows, float* memory) {
    d_ = work.params.head_dim;
    padded_d_ = work.padded_d;
    padded_dv_ = work.padded_dv;
    softcap_ = work.params.softcap;
    alibi_ = work.params.alibi_slopes.data;
    q_ = memory;
    out_ = memory + kWidth * padded_d_;
    std::fill(memory, memory + MemoryFloats(work), 0.0f);
    for (int64_t i = 0; i < num_rows; ++i) PutQuery(work, sequence, head, row + i, i);
    for (int lane = 0; lane < kVecs * kLanes; ++lane) {
      const int64_t lane_row = row + std::min<int64_t>(lane % kWidth, num_rows - 1);
      const RowPlace place = PlaceOf(work, sequence, head, lane_row);
      const int64_t token = place.token - sequence.tokens.begin;
      const KeyRange keys = VisibleKeysOfChunk(work.params, sequence, token);
      const int v = lane / kLanes, i = lane % kLanes;
      begins_[v][i] = static_cast<int32_t>(keys.begin);
      ends_[v][i] = static_cast<int32_t>(keys.end);
      positions_[v][i] = static_cast<float>(PositionOf(sequence, token));
      slopes_[v][i] = work.params.alibi_slopes.At(sequence.index, place.query_head, 0.0f);
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
    if (alibi_) SubtractAlibi(keys.first, keys.count, scores);
    if (keys.first < all_.begin || keys_end > all_.end || keys.count % kKeysPerVec)
      Mask(keys.first, keys.count, scores);
    alignas(64) float decay[kVecs * kLanes];
    Softmax(keys.count, scores, decay);
    Accumulate(keys, scores, decay);
  }

  // Of row i.
  RowSums sums(int64_t i) const {
    const VecF sum = FoldLanes<kWidth>(sum_[i / kLanes], [](VecF a, VecF b) { return a + b; });
    return {
        .out = out_ + i * padded_dv_, .max = max_[i / kLanes][i % kLanes], .sum = sum[i % kLanes]};
  }

 private:
  // Row `row` of the sequence becomes row i of Q: [kWidth, padded_d] or, transposed, [d, kWidth].
  void PutQuery(const CpuWork& work, const CpuSequence& sequence, int64_t head, int64_t row,
                int64_t i) {
    LoadQuery(work, sequence, head, row, [&](int64_t n, VecF x, int lanes) {
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
          rows[i] = keys.k + std::min(j + i, keys.count - 1) * keys.k_stride;
        Store(scores + j * kWidth, DotProducts<kWidth>(q_, padded_d_, rows, padded_d_));
      }
    } else {
      ForBlocks<kAccumulators / kVecs>(keys.count, [&]<int kKeys>(int64_t j) {
        VecF sums[kKeys][kVecs] = {};
        Multiply({keys.k + j * keys.k_stride, keys.k_stride, 1}, q_, kWidth, d_, sums);
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

  // Which of the keys of a register of scores each lane is of.
  static VecI KeyInVec() {
    VecI key_in_vec;
    for (int lane = 0; lane < kLanes; ++lane) key_in_vec[lane] = lane / kWidth;
    return key_in_vec;
  }

  // s -= slope * |position - key|, whole numbers that f32 holds exactly up to 2^24.
  void SubtractAlibi(int64_t first, int64_t count, float* scores) const {
    const VecF key_in_vec = __builtin_convertvector(KeyInVec(), VecF);
    ForScores(count, scores, [&](float* s, int v, int64_t j) {
      const VecF distance = positions_[v] - (key_in_vec + static_cast<float>(first + j));
      Store(s, Load(s) - slopes_[v] * Max(distance, -distance));
    });
  }

  void Mask(int64_t first, int64_t count, float* scores) const {
    const VecI key_in_vec = KeyInVec();
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
    ForBlocks<kAccumulators / kRows>(padded_dv_ / kLanes, [&]<int kColumns>(int64_t column) {
      for (int row = 0; row < kWidth; row += kRows) {
        float* out = out_ + row * padded_dv_ + column * kLanes;
        VecF sums[kRows][kColumns];
        for (int i = 0; i < kRows; ++i)
          for (int c = 0; c < kColumns; ++c)
            sums[i][c] = Load(out + i * padded_dv_ + c * kLanes) * decay[row + i];
        Multiply({scores + row, 1, kWidth}, keys.v + column * kLanes, keys.v_stride, keys.count,
                 sums);
        for (int i = 0; i < kRows; ++i)
          for (int c = 0; c < kColumns; ++c) Store(out + i * padded_dv_ + c * kLanes, sums[i][c]);
      }
    });
  }

  int64_t d_ = 0, padded_d_ = 0, padded_dv_ = 0;
  float softcap_ = 0;
  bool alibi_ = false;
  float* q_ = nullptr;
  float* out_ = nullptr;          // [kWidth, padded_dv]
  VecF max_[kVecs], sum_[kVecs];  // with few rows: sum_ only over the keys of its own lane
  VecI begins_[kVecs], ends_[kVecs];
  VecF positions_[kVecs], slopes_[kVecs];
  KeyRange some_{}, all_{};  // keys that some row, and that all rows see
};

}  // namespace
}  // namespace intarsia::attention
