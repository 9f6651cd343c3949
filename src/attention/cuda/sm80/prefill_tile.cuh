// The parts of prefill that one warp runs: the stream of tiles of K and V, the products on them,
// and the online softmax of its rows.
#pragma once
#include <type_traits>

#include "src/attention/cuda/fragments.cuh"
#include "src/attention/cuda/paging.cuh"
#include "src/attention/cuda/sm80/tiles.h"
#include "src/core/cuda/copy.cuh"
#include "src/core/cuda/mma_fp8.cuh"
#include "src/core/cuda/swizzle.cuh"

namespace intarsia::attention::prefill {

// How a kernel for K and V of a type and head dims up to kDim cuts its work.
template <DType kKeyType, int kDim, TileSize kSize>
struct TileConfig {
  static constexpr PrefillTiles kTiles = PrefillTilesOf(kKeyType, kDim, kSize);
  using M = cuda::Mma<kKeyType>;
  static constexpr DType kType = M::kQuery;  // of the products
  static constexpr bool kFp8 = IsFp8(kKeyType), kF32 = kType == DType::kF32;
  static constexpr bool kScaled = kFp8 || kF32;  // f32's kernel reads fp8, too
  using T = typename M::T;
  using Key = typename M::Key;
  static constexpr int kD = kDim;
  using QueryRows = cuda::SwizzledRows<kD* static_cast<int>(sizeof(T))>;
  using Rows = cuda::SwizzledRows<kD* static_cast<int>(sizeof(Key))>;  // of K and V
  static constexpr int kRowBlocks = kTiles.row_blocks;
  static constexpr int kWarps = kTiles.warps;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kWarpRows = 16 * kRowBlocks;
  static constexpr int kTileRows = kTiles.rows();
  static constexpr int kTileKeys = kTiles.keys;
  // Keys that a warp copies: whole bytes of the bits that say which exist, so two or more warps may
  // have to share them.
  static constexpr int kCopiedKeys = std::max(kTileKeys / kWarps, 8);
  static constexpr int kCopyGroups = kTileKeys / kCopiedKeys;
  static constexpr int kSharingWarps = kWarps / kCopyGroups;
  static constexpr int kKeyBytes = kTileKeys * Rows::kRowBytes;
  // In shared memory: Q, then places for a tile of K or V; behind K, which of its keys exist.
  static constexpr int kQueryBytes = kTileRows * QueryRows::kRowBytes;
  static constexpr int kPlaceBytes = PrefillPlaceBytes(kKeyType, kD, kTiles);
  static constexpr int kSharedBytes = PrefillSharedBytes(kKeyType, kD, kTiles);
  static_assert(kSharedBytes == kQueryBytes + kTiles.places * kPlaceBytes);

  // Of an element of K and V in the cache, where f32's kernel may find fp8.
  static __device__ int KeyBytes(const Params& p) {
    return kF32 && p.cache.dtype != DType::kF32 ? 1 : sizeof(Key);
  }

  using Scores = float[kRowBlocks][kTileKeys / 8][4];
  using Output = float[kRowBlocks][kD / 8][4];
};

// The tiles of K and V of one sequence and KV head, in the order K0 V0 K1 V1 ... Each warp copies
// its kCopiedKeys rows of every tile, and lane i finds row i: one page lookup a key, asked for a
// tile ahead.
template <class S>
class KeyStream {
 public:
  using T = typename S::Key;

  __device__ KeyStream(const Params& p, const KeyPlaces& places, const HeadRows& rows, Range keys,
                       bool aligned)
      : p_(p),
        places_(places),
        rows_(rows),
        aligned_(aligned),
        copies_(S::kSharingWarps == 1 || SharingWarp() == 0 || Converts()),
        end_(rows.exist ? keys.end : keys.begin) {
    FindNext(keys.begin);
  }

  // Of the keys that exist.
  __device__ int end() const { return end_; }

  // Asks for the tile of K that begins at first_key; each call goes on where the last one ended.
  __device__ __forceinline__ void LoadKeys(char* place, int first_key) {
    if (!copies_) return;
    exist_ = __ballot_sync(0xffffffffu, Copies(first_key) && places_.Exists(next_));
    const int64_t offset = places_.KeyOffset(next_);
    value_offset_ = places_.ValueOffset(next_);
    FindNext(first_key + S::kTileKeys);
    const int lane = threadIdx.x % 32;
    if (lane < S::kCopiedKeys && lane % 8 == 0 && SharingWarp() == 0)
      reinterpret_cast<uint8_t*>(place + S::kKeyBytes)[CopiedKey() / 8] =
          static_cast<uint8_t>(exist_ >> lane);
    Copy(place, rows_.k, offset, static_cast<int>(p_.head_dim));
  }
  // Asks for the tile of V that belongs to the tile of K asked for last.
  __device__ __forceinline__ void LoadValues(char* place) {
    if (!copies_) return;
    Copy(place, rows_.v, value_offset_, static_cast<int>(p_.cache.v_head_dim));
  }

  // Bit j: whether key j of the tile of K in a place exists.
  using KeyBits = std::conditional_t<S::kTileKeys == 64, uint64_t,
                                     std::conditional_t<S::kTileKeys == 32, uint32_t, uint16_t>>;
  static_assert(sizeof(KeyBits) * 8 == S::kTileKeys);
  static __device__ KeyBits Existing(const char* place) {
    return *reinterpret_cast<const KeyBits*>(place + S::kKeyBytes);
  }

 private:
  static __device__ int CopyGroup() {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    return S::kSharingWarps == 1 ? warp : warp % S::kCopyGroups;
  }
  // Which of the warps that copy the same keys this one is.
  static __device__ int SharingWarp() {
    return S::kSharingWarps == 1 ? 0 : static_cast<int>(threadIdx.x) / 32 / S::kCopyGroups;
  }
  // Whether K and V become f32 on their way, which all sharing warps do together. Of asynchronous
  // copies the first warp issues all, since lookups and instructions are what they cost.
  __device__ bool Converts() const { return S::kF32 && p_.cache.dtype != DType::kF32; }
  // Within a tile; only the first kCopiedKeys lanes have one.
  static __device__ int CopiedKey() {
    return CopyGroup() * S::kCopiedKeys + static_cast<int>(threadIdx.x % 32);
  }
  __device__ bool Copies(int first_key) const {
    return copies_ && threadIdx.x % 32 < S::kCopiedKeys && first_key + CopiedKey() < end_;
  }
  __device__ __forceinline__ void FindNext(int first_key) {
    if (Copies(first_key)) next_ = places_.Find(first_key + CopiedKey());
  }
  __device__ __forceinline__ void Copy(char* place, const void* source, int64_t offset,
                                       int d) const {
    constexpr int kWarpBytes = S::kCopiedKeys * S::Rows::kRowBytes;
    char* const target = place + CopyGroup() * kWarpBytes;
    if (Converts()) {
      cuda::CopyRowsThroughRegisters<typename S::Rows, S::kCopiedKeys, float, S::kSharingWarps>(
          target, offset, exist_, d,
          [&](int64_t index) {
            return cuda::LoadEightFloats(source, p_.cache.dtype, index, aligned_);
          },
          SharingWarp());
    } else {
      cuda::CopyRows<typename S::Rows, S::kCopiedKeys>(target, static_cast<const T*>(source),
                                                       offset, exist_, d, aligned_);
    }
  }

  const Params& p_;
  const KeyPlaces& places_;
  const HeadRows& rows_;
  const bool aligned_;
  const bool copies_;
  const int end_;
  KeyPlace next_;             // of this lane's key in the tile of K to be asked for next
  int64_t value_offset_ = 0;  // of V of this lane's key in the tile asked for last
  uint32_t exist_ = 0;        // bit i: whether lane i's key in that tile exists
};

// s = Q K', from the lane's addresses in both tiles.
template <class S>
__device__ __forceinline__ void MultiplyKeys(typename S::Scores& s, uint32_t q, uint32_t k) {
  using M = typename S::M;
  using Rows = typename S::Rows;
#pragma unroll
  for (int block = 0; block < S::kRowBlocks; ++block) {
#pragma unroll
    for (int n = 0; n < S::kTileKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[block][n][i] = 0.0f;
    }
  }
#pragma unroll
  for (int step = 0; step < S::kD / M::kStep; ++step) {
    typename M::A a[S::kRowBlocks];
#pragma unroll
    for (int block = 0; block < S::kRowBlocks; ++block)
      M::LoadA(a[block], S::QueryRows::AtStep(q, step) + 16 * block * S::QueryRows::kRowBytes);
#pragma unroll
    for (int n = 0; n < S::kTileKeys / 8; n += M::kKeyBlocks) {
      typename M::B b[M::kKeyBlocks];
      M::LoadB(b, Rows::AtUnit(k, step * M::kKeyUnits) + 8 * n * Rows::kRowBytes);
#pragma unroll
      for (int block = 0; block < S::kRowBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < M::kKeyBlocks; ++i) M::MultiplyAdd(s[block][n + i], a[block], b[i]);
      }
    }
  }
}

// The rows of one warp and what they have seen: m, l and o of prefill.cuh. A lane has the rows
// LaneRow(lane, 2 * block + r), and sums l over its own columns until the end.
//
// m need not be the maximum: any number near it gives the same quotient o / l. So it stays where it
// is until some x exceeds it by kSlack, which happens a few times, early on. Then P <= 2^kSlack,
// and most tiles need neither a reduction over lanes nor a rescaling of o (FlashAttention-4, 2025).
template <class S>
class RowState {
 public:
  using M = typename S::M;
  static constexpr float kSlack = 8.0f;

  // `factor` > 0 takes s to x. Columns of V from dv on are 0.
  __device__ RowState(float factor, int64_t dv)
      : factor_(factor), wide_(S::kD > kNarrow && dv > kNarrow) {
#pragma unroll
    for (int block = 0; block < S::kRowBlocks; ++block) m_[block][0] = m_[block][1] = -INFINITY;
  }

  // Moves m if s asks for it.
  __device__ __forceinline__ void FollowMaximum(const typename S::Scores& s) {
    float x[S::kRowBlocks][2];
    bool exceeds = false;
#pragma unroll
    for (int block = 0; block < S::kRowBlocks; ++block) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        x[block][r] = LaneMaximum(s[block], r) * factor_;
        exceeds |= x[block][r] > m_[block][r] + kSlack;
      }
    }
    if (__any_sync(0xffffffffu, exceeds)) MoveMaximum(x);
  }

  // s becomes P = 2^(x - m), and o += P V; v is the lane's address in the tile of V.
  __device__ __forceinline__ void AddValues(typename S::Scores& s, uint32_t v) {
    if constexpr (S::kF32)
      AddValuesByTile(s, v);
    else
      AddValuesByStep(s, v);
  }

  // Counts the sinks, ends the sums: o becomes the output, and Lse may be asked for.
  __device__ __forceinline__ void Finish(const float (&sink)[S::kRowBlocks][2], float v_scale) {
    float inverse[S::kRowBlocks][2];
#pragma unroll
    for (int block = 0; block < S::kRowBlocks; ++block) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& l = l_[block][r];
        l = RowSum(l);
        const float m = m_[block][r], top = fmaxf(m, sink[block][r]), base = BaseOf(top);
        const float kept = cuda::Exp2(m - base);
        l = l * kept + cuda::Exp2(sink[block][r] - base);
        m_[block][r] = top;
        inverse[block][r] = l == 0.0f ? 0.0f : v_scale * kept / l;
      }
    }
    Scale(inverse);
  }
  __device__ float Lse(int block, int r) const {
    const float l = l_[block][r];
    return l == 0.0f ? -INFINITY : m_[block][r] * kLn2 + logf(l);
  }

  typename S::Output o = {};

 private:
  static constexpr int kSteps = S::kTileKeys / M::kStep;
  static constexpr int kNarrow = 128;  // of more columns, all may be 0

  static __device__ __forceinline__ float LaneMaximum(const float (&s)[S::kTileKeys / 8][4],
                                                      int r) {
    float m = fmaxf(s[0][2 * r], s[0][2 * r + 1]);
#pragma unroll
    for (int n = 1; n < S::kTileKeys / 8; ++n) m = fmaxf(m, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
    return m;
  }

  __device__ __forceinline__ void MoveMaximum(float (&x)[S::kRowBlocks][2]) {
#pragma unroll
    for (int block = 0; block < S::kRowBlocks; ++block) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float m = RowMaximum(fmaxf(x[block][r], m_[block][r]));
        x[block][r] = cuda::Exp2(m_[block][r] - BaseOf(m));
        m_[block][r] = m;
        l_[block][r] *= x[block][r];
      }
    }
    Scale(x);
  }

  // The weights of one step's keys, as A fragments.
  __device__ __forceinline__ void TakeWeights(typename S::Scores& s, int step,
                                              typename M::A (&p)[S::kRowBlocks]) {
    const int first = step * M::kScoresOfStep;
#pragma unroll
    for (int block = 0; block < S::kRowBlocks; ++block) {
#pragma unroll
      for (int n = first; n < first + M::kScoresOfStep; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          l_[block][i / 2] += s[block][n][i] =
              cuda::Exp2(s[block][n][i] * factor_ - BaseOf(m_[block][i / 2]));
      }
      M::FromScores(p[block], &s[block][first]);
    }
  }

  static __device__ __forceinline__ void LoadValues(typename M::B (&b)[M::kValueBlocks], uint32_t v,
                                                    int step, int n) {
    using Rows = typename S::Rows;
    M::template LoadTransposed<Rows>(b, Rows::AtStep(v, n / M::kValueBlocks * M::kTransposedSteps) +
                                            step * M::kStep * Rows::kRowBytes);
  }

  // Step by step, so that the exponentials of one step run beside the products of another.
  __device__ __forceinline__ void AddValuesByStep(typename S::Scores& s, uint32_t v) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      typename M::A p[S::kRowBlocks];
      TakeWeights(s, step, p);
      AddColumns<0, std::min(S::kD, kNarrow)>(p, v, step);
      if (wide_) AddColumns<std::min(S::kD, kNarrow), S::kD>(p, v, step);
    }
  }
  template <int kBegin, int kEnd>
  __device__ __forceinline__ void AddColumns(const typename M::A (&p)[S::kRowBlocks], uint32_t v,
                                             int step) {
#pragma unroll
    for (int n = kBegin / 8; n < kEnd / 8; n += M::kValueBlocks) {
      typename M::B b[M::kValueBlocks];
      LoadValues(b, v, step, n);
#pragma unroll
      for (int block = 0; block < S::kRowBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < M::kValueBlocks; ++i) M::MultiplyAdd(o[block][n + i], p[block], b[i]);
      }
    }
  }

  // A tensor core cuts off what does not fit into a sum, where f32 arithmetic rounds, so a sum over
  // thousands of keys would come out too small by 1e-4 (measured on an H200: 8.8e-5 over 8000). For
  // f32 it sums over one tile only, and the tiles are added here.
  __device__ __forceinline__ void AddValuesByTile(typename S::Scores& s, uint32_t v) {
    typename M::A p[kSteps][S::kRowBlocks];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) TakeWeights(s, step, p[step]);
#pragma unroll
    for (int n = 0; n < S::kD / 8; n += 2) {
      float sum[S::kRowBlocks][2][4] = {};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        typename M::B b[2];
        LoadValues(b, v, step, n);
#pragma unroll
        for (int block = 0; block < S::kRowBlocks; ++block) {
          M::MultiplyAdd(sum[block][0], p[step][block], b[0]);
          M::MultiplyAdd(sum[block][1], p[step][block], b[1]);
        }
      }
#pragma unroll
      for (int block = 0; block < S::kRowBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < 8; ++i) o[block][n + i / 4][i % 4] += sum[block][i / 4][i % 4];
      }
    }
  }

  __device__ __forceinline__ void Scale(const float (&by)[S::kRowBlocks][2]) {
#pragma unroll
    for (int block = 0; block < S::kRowBlocks; ++block) {
#pragma unroll
      for (int n = 0; n < S::kD / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[block][n][i] *= by[block][i / 2];
      }
    }
  }

  const float factor_;
  const bool wide_;
  float m_[S::kRowBlocks][2];
  float l_[S::kRowBlocks][2] = {};
};

}  // namespace intarsia::attention::prefill
