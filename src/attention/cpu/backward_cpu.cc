#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "src/attention/cpu/backward.h"
#include "src/attention/cpu/matmul.h"
#include "src/core/cpu/simd.h"
#include "src/core/round.h"

namespace intarsia {
namespace attention {
namespace {

constexpr int64_t kTile = kBackwardTile;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What the weights of a row of q need, for a tile of rows.
struct Rows {
  float lse[kTile], delta[kTile], slope[kTile];  // lse: inf if the row sees nothing
  int32_t position[kTile];
};

// The memory of one worker, and what it works on: a tile that stays and tiles that pass by. If keys
// stay then rows pass and the other way round. `k` and `v` stand for q and dout where rows are
// meant.
//
// Products take single elements of the tile that passes and registers of the one that stays, which
// for that lies transposed as well.
template <class T, bool kKeysStay>
class Worker {
 public:
  Worker(const BackwardWork& work, float* memory)
      : work_(work), p_(work.params.forward), d_(p_.head_dim), padded_d_(work.padded_d) {
    float** const tiles[] = {&stay_[0], &stay_columns_[0], &stay_columns_[1], &pass_[0],
                             &pass_[1], &sums_[0],         &sums_[1],         &passing_sums_};
    for (float** tile : tiles) *tile = memory, memory += kTile * padded_d_;
    weights_ = memory;
    gradients_ = weights_ + kTile * kTile;
    std::fill(stay_[0], weights_, 0.0f);  // what lies between d and padded_d stays 0
  }

  // dk and dv of the item's keys under one KV head; if fused, dq of the rows that see them, too.
  void RunKeys(const BackwardItem& item, int64_t head) {
    Begin(item, head);
    for (int64_t key = item.begin; key < item.end; key += kTile) {
      const int64_t num_keys = std::min(kTile, item.end - key);
      StayKeys(key, num_keys);
      const RangeOf<int64_t> tokens = TokensThatSee(p_, sequence_, key, key + num_keys - 1);
      const int64_t last_row = tokens.end * work_.group;
      for (int64_t row = tokens.begin * work_.group; row < last_row; row += kTile) {
        const int64_t num_rows = std::min(kTile, last_row - row);
        LoadRows(row, num_rows, pass_[0], pass_[1]);
        Weigh(key, num_keys, num_rows);
        Accumulate(sums_[1], weights_, num_keys, pass_[1], num_rows);
        Accumulate(sums_[0], gradients_, num_keys, pass_[0], num_rows);
        if (work_.fused) AddQueryGradient(row, num_rows, num_keys);
      }
      StoreKeys(key, num_keys);
    }
  }

  // dq of the item's rows under one KV head.
  void RunRows(const BackwardItem& item, int64_t head) {
    Begin(item, head);
    const int64_t num_rows = item.end - item.begin;
    LoadRows(item.begin, num_rows, stay_[0], pass_[0]);
    Transpose(stay_[0], stay_columns_[0]);
    Transpose(pass_[0], stay_columns_[1]);
    const KeyRange first = VisibleKeys(p_, sequence_, item.begin / work_.group);
    const KeyRange last = VisibleKeys(p_, sequence_, (item.end - 1) / work_.group);
    // One sum for each tile of keys that RunKeys takes, then the sum of these in their order: so dq
    // has the bits that `fused` gives it.
    for (int64_t key = first.begin, end; key < last.end; key = end) {
      end = std::min(last.end, (key / kTile + 1) * kTile);
      const int64_t num_keys = end - key;
      LoadKeys(key, num_keys, pass_[0], pass_[1]);
      Weigh(key, num_rows, num_keys);
      Accumulate(sums_[1], gradients_, num_rows, pass_[0], num_keys);
      for (int64_t i = 0; i < num_rows * padded_d_; ++i) sums_[0][i] += sums_[1][i];
      std::fill(sums_[1], sums_[1] + num_rows * padded_d_, 0.0f);
    }
    for (int64_t i = 0; i < num_rows; ++i) {
      T* const dq = static_cast<T*>(work_.params.dq) + RowOf(item.begin + i) * d_;
      StoreRow(dq, sums_[0] + i * padded_d_, p_.scale);
    }
  }

 private:
  void Begin(const BackwardItem& item, int64_t head) {
    sequence_ = item.sequence;
    head_ = head;
    std::fill(sums_[0], sums_[0] + kTile * padded_d_, 0.0f);
    std::fill(sums_[1], sums_[1] + kTile * padded_d_, 0.0f);
  }

  // A packed row's place among the rows [t, h] of q.
  int64_t RowOf(int64_t row) const {
    return (sequence_.tokens.begin + row / work_.group) * p_.num_heads + head_ * work_.group +
           row % work_.group;
  }

  void LoadRow(float* to, const T* from) const {
    ForLanes(d_, [&](int64_t i, int lanes) { Store(to + i, LoadN(from + i, lanes)); });
  }
  void StoreRow(T* to, const float* from, float factor) const {
    ForLanes(d_, [&](int64_t i, int lanes) { StoreN(to + i, Load(from + i) * factor, lanes); });
  }
  // From rows [kTile, padded_d] to columns [d, kTile].
  void Transpose(const float* rows, float* columns) const {
    for (int64_t i = 0; i < kTile; ++i)
      for (int64_t n = 0; n < d_; ++n) columns[n * kTile + i] = rows[i * padded_d_ + n];
  }

  void LoadKeys(int64_t key, int64_t count, float* k, float* v) const {
    const CacheView& c = p_.cache;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t slot = sequence_.k_begin + key + i;
      LoadRow(k + i * padded_d_, static_cast<const T*>(c.k) + c.k_strides.At(0, 0, slot, head_));
      LoadRow(v + i * padded_d_, static_cast<const T*>(c.v) + c.v_strides.At(0, 0, slot, head_));
    }
  }
  void StayKeys(int64_t key, int64_t count) {
    LoadKeys(key, count, stay_[0], pass_[0]);
    Transpose(stay_[0], stay_columns_[0]);
    Transpose(pass_[0], stay_columns_[1]);
  }
  void StoreKeys(int64_t key, int64_t count) {
    const int64_t hk = p_.num_kv_heads();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = ((sequence_.k_begin + key + i) * hk + head_) * d_;
      StoreRow(static_cast<T*>(work_.params.dk) + at, sums_[0] + i * padded_d_, p_.scale);
      StoreRow(static_cast<T*>(work_.params.dv) + at, sums_[1] + i * padded_d_, 1.0f);
    }
    std::fill(sums_[0], sums_[0] + kTile * padded_d_, 0.0f);
    std::fill(sums_[1], sums_[1] + kTile * padded_d_, 0.0f);
  }

  void LoadRows(int64_t row, int64_t count, float* q, float* dout) {
    const RowStats* const stats = BackwardWorkspace(work_.params).stats();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t token = (row + i) / work_.group;
      const int64_t query_head = head_ * work_.group + (row + i) % work_.group;
      const int64_t at = RowOf(row + i);
      LoadRow(q + i * padded_d_, static_cast<const T*>(p_.q) +
                                     (sequence_.tokens.begin + token) * p_.q_token_stride +
                                     query_head * p_.q_head_stride);
      LoadRow(dout + i * padded_d_, static_cast<const T*>(work_.params.dout) + at * d_);
      rows_.lse[i] = stats[at].lse;
      rows_.delta[i] = stats[at].delta;
      rows_.slope[i] = p_.alibi_slopes.At(sequence_.index, query_head, 0.0f);
      rows_.position[i] = static_cast<int32_t>(PositionOf(sequence_, token));
    }
    for (int64_t i = count; i < kTile; ++i) {
      rows_.lse[i] = kInfinity;
      rows_.delta[i] = rows_.slope[i] = 0;
      rows_.position[i] = 0;
    }
  }

  // to[i, j] = rows i of a tile that passes times row j of the one that stays, lying transposed.
  void Multiply(float* to, const float* pass, int64_t count, const float* columns,
                int64_t num_columns) const {
    ForBlocks<2>(CeilDiv<int64_t>(num_columns, kLanes), [&]<int kColumns>(int64_t column) {
      ForBlocks<kAccumulators / 2>(count, [&]<int kRows>(int64_t i) {
        VecF sums[kRows][kColumns] = {};
        attention::Multiply({pass + i * padded_d_, padded_d_, 1}, columns + column * kLanes, kTile,
                            d_, sums);
        for (int r = 0; r < kRows; ++r)
          for (int c = 0; c < kColumns; ++c)
            Store(to + (i + r) * kTile + (column + c) * kLanes, sums[r][c]);
      });
    });
  }

  // weights_ = P and gradients_ = dS, [those that pass, those that stay].
  void Weigh(int64_t first_key, int64_t staying, int64_t passing) {
    Multiply(weights_, pass_[0], passing, stay_columns_[0], staying);
    Multiply(gradients_, pass_[1], passing, stay_columns_[1], staying);
    VecI lane;
    for (int i = 0; i < kLanes; ++i) lane[i] = i;
    for (int64_t i = 0; i < passing; ++i) {
      for (int64_t j = 0; j < staying; j += kLanes) {
        const int64_t row = kKeysStay ? i : j, key = first_key + (kKeysStay ? j : i);
        const VecI keys = (kKeysStay ? lane : VecI{}) + static_cast<int32_t>(key);
        WeighVector(keys, row, weights_ + i * kTile + j, gradients_ + i * kTile + j);
      }
    }
  }

  VecF OfRows(const float* x, int64_t row) const {
    return kKeysStay ? Splat(x[row]) : Load(x + row);
  }

  // From q . k and dout . v to P and dS. Keys are in the lanes if they stay, else rows are.
  [[gnu::always_inline]] void WeighVector(VecI key, int64_t row, float* weight,
                                          float* gradient) const {
    VecI position;
    if constexpr (kKeysStay)
      position = VecI{} + rows_.position[row];
    else
      std::memcpy(&position, rows_.position + row, sizeof position);
    VecF x = Load(weight) * p_.scale, gain = Splat(1.0f);
    if (p_.softcap > 0) {
      const VecF y = x / p_.softcap;
      const VecF e = Exp((y < 0.0f ? y : -y) * 2.0f);
      gain = 4.0f * e / ((1.0f + e) * (1.0f + e));  // 1 - tanh^2, which would cancel
      x = Tanh(y) * p_.softcap;
    }
    if (p_.alibi_slopes.data) {
      const VecF distance = __builtin_convertvector(position - key, VecF);
      x -= OfRows(rows_.slope, row) * (distance < 0.0f ? -distance : distance);
    }
    VecI seen = key < static_cast<int32_t>(sequence_.len_k);
    if (p_.window_left >= 0) seen &= key >= position - static_cast<int32_t>(p_.window_left);
    if (p_.window_right >= 0) seen &= key <= position + static_cast<int32_t>(p_.window_right);
    const VecF p = Select(seen, Exp(x - OfRows(rows_.lse, row)), VecF{});
    Store(gradient, Select(seen, p * (Load(gradient) - OfRows(rows_.delta, row)) * gain, VecF{}));
    Store(weight, p);
  }

  // sums[j] += sum_i factors[i, j] pass[i], or with kByRows sums[i] += sum_j factors[i, j] pass[j].
  template <bool kByRows = false>
  void Accumulate(float* sums, const float* factors, int64_t num_sums, const float* pass,
                  int64_t count) const {
    constexpr int64_t kRowStride = kByRows ? kTile : 1, kCountStride = kByRows ? 1 : kTile;
    ForBlocks<2>(padded_d_ / kLanes, [&]<int kColumns>(int64_t column) {
      ForBlocks<kAccumulators / 2>(num_sums, [&]<int kRows>(int64_t row) {
        float* const to = sums + row * padded_d_ + column * kLanes;
        VecF block[kRows][kColumns];
        for (int r = 0; r < kRows; ++r)
          for (int c = 0; c < kColumns; ++c) block[r][c] = Load(to + r * padded_d_ + c * kLanes);
        attention::Multiply({factors + row * kRowStride, kRowStride, kCountStride},
                            pass + column * kLanes, padded_d_, count, block);
        for (int r = 0; r < kRows; ++r)
          for (int c = 0; c < kColumns; ++c) Store(to + r * padded_d_ + c * kLanes, block[r][c]);
      });
    });
  }

  // The workspace's dq += dS K, over the keys that stay.
  void AddQueryGradient(int64_t row, int64_t num_rows, int64_t num_keys) {
    std::fill(passing_sums_, passing_sums_ + num_rows * padded_d_, 0.0f);
    Accumulate<true>(passing_sums_, gradients_, num_rows, stay_[0], num_keys);
    for (int64_t i = 0; i < num_rows; ++i) {
      float* const dq = BackwardWorkspace(work_.params).dq() + RowOf(row + i) * d_;
      ForLanes(d_, [&](int64_t n, int lanes) {
        StoreN(dq + n, LoadN(dq + n, lanes) + Load(passing_sums_ + i * padded_d_ + n), lanes);
      });
    }
  }

  const BackwardWork& work_;
  const Params& p_;
  const int64_t d_, padded_d_;
  CpuSequence sequence_;
  int64_t head_ = 0;
  // f32 [kTile, padded_d]. 0: k or q, 1: v or dout; of sums_ 0: dk or dq, 1: dv.
  float *stay_[1], *stay_columns_[2], *pass_[2], *sums_[2], *passing_sums_;
  float *weights_, *gradients_;  // f32 [kTile, kTile]
  Rows rows_;
};

// fn(first, count) for pieces of [0, total).
template <class Fn>
void ForPieces(const CpuContext& context, int64_t total, int64_t piece, Fn fn) {
  context.ParallelFor(CeilDiv(total, piece),
                      [&](int64_t i) { fn(i * piece, std::min(piece, total - i * piece)); });
}

// Everything that nobody else writes, or that others add to, becomes 0; RowStats of all rows.
template <class T>
void Prepare(const BackwardWork& work, const CpuContext& context) {
  const BackwardParams& b = work.params;
  const Params& p = b.forward;
  const int64_t d = p.head_dim, h = p.num_heads, t = p.num_tokens;
  const int64_t row_bytes = d * static_cast<int64_t>(sizeof(T));
  ForPieces(context, p.max_len_k * p.num_kv_heads(), 1024, [&](int64_t row, int64_t count) {
    for (void* to : {b.dk, b.dv})
      std::memset(static_cast<char*>(to) + row * row_bytes, 0,
                  static_cast<size_t>(count * row_bytes));
  });
  const BackwardWorkspace workspace(b);
  ForPieces(context, t * h, 256, [&](int64_t row, int64_t count) {
    std::memset(static_cast<char*>(b.dq) + row * row_bytes, 0,
                static_cast<size_t>(count * row_bytes));
    if (work.fused)
      std::memset(workspace.dq() + row * d, 0, static_cast<size_t>(count * d) * sizeof(float));
    for (const int64_t end = row + count; row < end; ++row) {
      const T* const out = static_cast<const T*>(p.out) + row * d;
      const T* const dout = static_cast<const T*>(b.dout) + row * d;
      VecF sum = {};
      ForLanes(
          d, [&](int64_t i, int lanes) { sum += LoadN(out + i, lanes) * LoadN(dout + i, lanes); });
      const int64_t at = row % h * t + row / h;  // in [h, t]
      workspace.stats()[row] = {p.lse[at] == -kInfinity ? kInfinity : p.lse[at],
                                Sum(sum) - (b.dlse ? b.dlse[at] : 0.0f)};
    }
  });
}

// dq from its f32 form in the workspace.
template <class T>
void StoreQueryGradient(const BackwardWork& work, const CpuContext& context) {
  const int64_t d = work.params.forward.head_dim;
  const float* const from = BackwardWorkspace(work.params).dq();
  T* const dq = static_cast<T*>(work.params.dq);
  ForPieces(context, work.params.query_rows() * d, 256 * d, [&](int64_t first, int64_t count) {
    ForLanes(count, [&](int64_t i, int lanes) {
      StoreN(dq + first + i, LoadN(from + first + i, lanes) * work.params.forward.scale, lanes);
    });
  });
}

void StoreSinkGradient(const BackwardWork& work, const CpuContext& context) {
  const Params& p = work.params.forward;
  const RowStats* const stats = BackwardWorkspace(work.params).stats();
  ForPieces(context, p.num_heads, 1, [&](int64_t head, int64_t) {
    double sum = 0;
    for (int64_t token = work.first_token; token < work.end_token; ++token) {
      const RowStats& row = stats[token * p.num_heads + head];
      sum -= std::exp(static_cast<double>(p.sinks[head]) - static_cast<double>(row.lse)) *
             static_cast<double>(row.delta);
    }
    work.params.dsinks[head] = static_cast<float>(sum);
  });
}

// fn(worker, item, head) for every item under every KV head. A worker takes one after the other.
template <class T, bool kKeysStay, class Fn>
void ForItems(const BackwardWork& work, const CpuContext& context, int64_t num_items, Fn fn) {
  const int64_t hk = work.params.forward.num_kv_heads(), count = num_items * hk;
  std::atomic<int64_t> next{0};
  context.ParallelFor(std::min(work.num_workers, count), [&](int64_t number) {
    Worker<T, kKeysStay> worker(work, work.scratch + number * work.scratch_floats());
    for (int64_t i; (i = next.fetch_add(1)) < count;) fn(worker, i / hk, i % hk);
  });
}

template <class T>
Status RunAll(const BackwardWork& work, const CpuContext& context) {
  Prepare<T>(work, context);
  ForItems<T, true>(work, context, work.num_key_items,
                    [&](auto& worker, int64_t item, int64_t head) {
                      worker.RunKeys(work.key_items[item], head);
                    });
  ForItems<T, false>(work, context, work.num_row_items,
                     [&](auto& worker, int64_t item, int64_t head) {
                       worker.RunRows(work.row_items[item], head);
                     });
  if (work.fused) StoreQueryGradient<T>(work, context);
  if (work.params.dsinks) StoreSinkGradient(work, context);
  return {};
}

}  // namespace
}  // namespace attention

template <>
Status RunCpu<kIsa>(const attention::BackwardWork& work, const CpuContext& context) {
  const DType dtype = work.params.forward.dtype;
  if (dtype == DType::kF32) return attention::RunAll<float>(work, context);
  if (dtype == DType::kF16) return attention::RunAll<F16>(work, context);
  return attention::RunAll<BF16>(work, context);
}

}  // namespace intarsia
