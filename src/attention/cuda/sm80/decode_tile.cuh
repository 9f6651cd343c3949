// The parts of split-KV decode that one warp runs: its ring of chunks of K and V, the products on
// them, and the online softmax of its rows.
#pragma once
#include "src/attention/cuda/fragments.cuh"
#include "src/attention/cuda/paging.cuh"
#include "src/attention/cuda/sm80/tiles.h"
#include "src/attention/decode_plan.h"
#include "src/core/cuda/mma_fp8.cuh"
#include "src/core/cuda/swizzle.cuh"

namespace intarsia::attention::decode {

// How a kernel for K and V of a type and head dims up to kDim cuts its work.
template <DType kKeyType, int kDim, TileSize kSize>
struct TileConfig {
  static constexpr DecodeTiles kTiles = DecodeTilesOf(kKeyType, kDim, kSize);
  using M = cuda::Mma<kKeyType>;
  static constexpr DType kType = M::kQuery;  // of the products
  static constexpr bool kFp8 = IsFp8(kKeyType);
  static constexpr bool kScaled = kFp8 || kType == DType::kF32;  // whose kernel reads fp8, too
  using T = typename M::T;
  using Key = typename M::Key;
  static constexpr int kD = kDim;
  static constexpr bool kPlain = false;  // decode_plain.cuh
  using QueryRows = cuda::SwizzledRows<kD* static_cast<int>(sizeof(T))>;
  using Rows = cuda::SwizzledRows<kD* static_cast<int>(sizeof(Key))>;  // of K and V
  static constexpr int kChunkKeys = kTiles.chunk_keys;
  static_assert(kChunkKeys == 8 * M::kKeyBlocks);
  static constexpr int kWarps = kTiles.warps;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRoundKeys = kWarps * kChunkKeys;  // of all warps
  // Shared memory: Q, then a ring of K and V for each warp.
  static constexpr int kQueryBytes = kTileRows * QueryRows::kRowBytes;
  static constexpr int kChunkBytes = kChunkKeys * Rows::kRowBytes;
  static constexpr int kChunks = kTiles.chunks;
  static constexpr int kRingBytes = kChunks * 2 * kChunkBytes;
  static constexpr int kSharedBytes = DecodeSharedBytes(kKeyType, kD, kTiles);
  static_assert(kSharedBytes == kQueryBytes + kWarps * kRingBytes);
  // In the end the warps' results are combined there; eight more floats a row avoid bank conflicts.
  static constexpr int kPitch = kD + 8;
  static_assert(kWarps * kTileRows * kPitch * 4 <= kSharedBytes);

  // Of an element of K and V in the cache, where f32's kernel may find fp8.
  static __device__ int KeyBytes(const Params& p) {
    return kType == DType::kF32 && p.cache.dtype != DType::kF32 ? 1 : sizeof(Key);
  }

  using Scores = float[kChunkKeys / 8][4];  // 16 rows x kChunkKeys
  using Output = float[kD / 8][4];          // 16 rows x kD
};

// kChunkKeys rows on their way to shared memory: kLanes lanes share a row, and each knows where its
// rows begin in the source.
template <class S>
class RowCopy {
 public:
  RowCopy() = default;
  // Lane first_lane + i knows `place`, where row i begins; bit i of `existing`: whether there is
  // such a row.
  __device__ __forceinline__ RowCopy(int64_t place, uint32_t existing, int first_lane)
      : existing_(existing >> FirstRow()) {
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      places_[i] = __shfl_sync(0xffffffffu, place, first_lane + FirstRow() + i * kRowStep);
  }

  // Asynchronous if all rows are aligned and of the tile's type. Rows that do not exist and columns
  // from d on become zeros, so that no rubbish in a cache, a NaN say, enters a product.
  __device__ __forceinline__ void Start(uint32_t target, const void* source, DType dtype, int d,
                                        bool aligned) const {
    if (!aligned || (S::kType == DType::kF32 && dtype != DType::kF32))
      return CopyThroughRegisters(target, source, dtype, d, aligned);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const T* const row = static_cast<const T*>(source) + places_[i] + FirstUnit() * kElements;
      const uint32_t row_target = target + Rows::Offset(FirstRow() + i * kRowStep, FirstUnit());
#pragma unroll
      for (int unit = 0; unit < Rows::kUnits; unit += kLanes) {
        const bool exists = (existing_ >> i * kRowStep & 1) && (FirstUnit() + unit) * kElements < d;
        cuda::CpAsync16(row_target + unit * 16, row + unit * kElements, exists);
      }
    }
  }

 private:
  using T = typename S::Key;
  using Rows = typename S::Rows;
  static constexpr int kElements = 16 / static_cast<int>(sizeof(T));
  // The swizzle moves a unit within so many, so units kLanes apart are so in shared memory, too.
  static constexpr int kLanes = Rows::kMask + 1;
  static constexpr int kRowStep = 32 / kLanes;
  static constexpr int kRows = S::kChunkKeys / kRowStep;  // of a lane
  static __device__ int FirstRow() { return threadIdx.x % 32 / kLanes; }
  static __device__ int FirstUnit() { return threadIdx.x % kLanes; }

  __device__ __forceinline__ void CopyThroughRegisters(uint32_t target, const void* source,
                                                       DType dtype, int d, bool aligned) const {
    char* const tile = static_cast<char*>(__cvta_shared_to_generic(target));
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int end = existing_ >> i * kRowStep & 1 ? d : 0;
#pragma unroll
      for (int column = 8 * FirstUnit(); column < S::kD; column += 8 * kLanes) {
        cuda::Eight<T> values = {};
        if (column < end) {
          if constexpr (S::kType == DType::kF32)
            values = cuda::LoadEightFloats(source, dtype, places_[i] + column, aligned);
          else
            values = cuda::LoadEight<T>(source, places_[i] + column, aligned);
        }
        cuda::StoreEight<Rows>(tile, FirstRow() + i * kRowStep, column, values);
      }
    }
  }

  int64_t places_[kRows];
  uint32_t existing_;  // bit i * kRowStep: of this lane's row i
};

// The keys of a piece, as a ring finds them. `sequence` must outlive it.
class PieceKeys {
 public:
  __device__ __forceinline__ PieceKeys(const Params& p, const Divisor& page_size,
                                       const Sequence& sequence, int end)
      : places_(p, page_size, sequence), end_(end) {}
  __device__ __forceinline__ void Find(int key, KeyPlace& place) const {
    if (key < end_) place = places_.Find(key);
  }
  __device__ __forceinline__ bool Has(int key) const { return key < end_; }
  __device__ __forceinline__ void Clear() { end_ = 0; }
  __device__ __forceinline__ const Pages& pages() const { return places_; }

 private:
  const KeyPlaces places_;
  int end_;
};

// A warp's chunks of K and V, in the order K0 V0 K1 V1 ..., kChunks of each on their way. A chunk
// that is asked for takes the place of the one that was read last. Lanes find one key each, of as
// many chunks at once as that makes: the first kChunkKeys lanes those of the next chunk, and so on.
// The page numbers for that are asked for when the chunks before are.
template <class S, class Keys>
class Ring {
 public:
  // The warp's chunks begin at the key `first` and every one round_keys further. `keys` must
  // outlive it, and has none if there is no such layer.
  __device__ __forceinline__ Ring(const Params& p, Keys& keys, int kv_head, int first,
                                  int round_keys, bool aligned, uint32_t shared)
      : p_(p),
        keys_(keys),
        aligned_(aligned),
        place_(shared),
        end_of_ring_(shared + S::kRingBytes),
        round_keys_(round_keys),
        key_(first + static_cast<int>(threadIdx.x % 32 / kChunkKeys * round_keys +
                                      threadIdx.x % kChunkKeys)) {
    keys_.Find(key_, next_);
    rows_ = HeadRowsOf(p, kv_head, S::KeyBytes(p));
    if (!rows_.exist) keys.Clear();
  }

  // Every call makes one group of copies, so that groups count chunks; an empty one if there is no
  // such chunk (!any), which must not be read then.
  __device__ __forceinline__ void AskForKeys(bool any = true) {
    if (turn_ == 0) {
      const bool exists = keys_.Has(key_) && keys_.pages().Exists(next_);
      key_row_ = exists ? keys_.pages().KeyOffset(next_) : 0;
      value_row_ = exists ? keys_.pages().ValueOffset(next_) : 0;
      found_ = __ballot_sync(0xffffffffu, exists);
      key_ += kTurns * round_keys_;
      keys_.Find(key_, next_);
    }
#pragma unroll
    for (int i = S::kChunks - 1; i > 0; --i) existing_[i] = existing_[i - 1];
    existing_[0] = found_ >> turn_ * kChunkKeys & kAllExist;
    if (any) {
      copy_ = RowCopy<S>(key_row_, existing_[0], turn_ * kChunkKeys);
      copy_.Start(place_, rows_.k, p_.cache.dtype, static_cast<int>(p_.head_dim), aligned_);
    }
    cuda::CpAsyncCommit();
  }
  __device__ __forceinline__ void AskForValues(bool any = true) {
    if (any) {
      if (!keys_.pages().SameOffsets())
        copy_ = RowCopy<S>(value_row_, existing_[0], turn_ * kChunkKeys);
      copy_.Start(place_ + S::kChunkBytes, rows_.v, p_.cache.dtype,
                  static_cast<int>(p_.cache.v_head_dim), aligned_);
    }
    cuda::CpAsyncCommit();
    place_ += 2 * S::kChunkBytes;
    if (place_ == end_of_ring_) place_ -= S::kRingBytes;
    turn_ = (turn_ + 1) % kTurns;
  }

  // Waits for the oldest chunk, when kChunks of K and of V, less those read already, have been
  // asked for.
  __device__ __forceinline__ void Wait() const {
    cuda::CpAsyncWait<2 * S::kChunks - 1>();
    __syncwarp();
  }
  __device__ uint32_t keys() const { return place_; }
  __device__ uint32_t values() const { return place_ + S::kChunkBytes; }
  // Bit j: whether key j of the oldest chunk of K exists.
  __device__ uint32_t existing() const { return existing_[S::kChunks - 1]; }
  static constexpr uint32_t kAllExist = 0xffffffffu >> (32 - S::kChunkKeys);

 private:
  static constexpr int kChunkKeys = S::kChunkKeys;
  static constexpr int kTurns = 32 / kChunkKeys;  // chunks whose keys are found at once

  const Params& p_;
  const Keys& keys_;
  const bool aligned_;
  uint32_t place_;  // of the oldest chunks
  const uint32_t end_of_ring_;
  const int round_keys_;
  int key_;        // that this lane finds next
  KeyPlace next_;  // of key_
  HeadRows rows_;
  int64_t key_row_ = 0, value_row_ = 0;  // where the key found last lies
  uint32_t found_ = 0;                   // bit i: whether what lane i found last exists
  int turn_ = 0;                         // which chunk of those found last comes next
  RowCopy<S> copy_;                      // of the chunk asked for last
  uint32_t existing_[S::kChunks] = {};   // of each chunk of K, the newest first
};

// c += a b. The tensor cores truncate their sums, towards 0, which f32 would show after some
// hundred steps: there each step has a sum of its own.
template <class M>
__device__ __forceinline__ void MultiplyAdd(float (&c)[4], const typename M::A& a,
                                            const typename M::B& b) {
  if constexpr (sizeof(typename M::T) < 4) {
    M::MultiplyAdd(c, a, b);
  } else {
    float sum[4] = {};
    M::MultiplyAdd(sum, a, b);
#pragma unroll
    for (int i = 0; i < 4; ++i) c[i] += sum[i];
  }
}

// s = Q K', from the lane's addresses in both.
template <class S>
__device__ __forceinline__ void MultiplyKeys(typename S::Scores& s, uint32_t q, uint32_t k) {
  using M = typename S::M;
#pragma unroll
  for (auto& block : s) block[0] = block[1] = block[2] = block[3] = 0.0f;
#pragma unroll
  for (int step = 0; step < S::kD / M::kStep; ++step) {
    typename M::A a;
    typename M::B b[M::kKeyBlocks];
    M::LoadA(a, S::QueryRows::AtStep(q, step));
    M::LoadB(b, S::Rows::AtUnit(k, step * M::kKeyUnits));
#pragma unroll
    for (int n = 0; n < M::kKeyBlocks; ++n) MultiplyAdd<M>(s[n], a, b[n]);
  }
}

// o += P V, with P in the layout of s.
template <class S>
__device__ __forceinline__ void MultiplyValues(typename S::Output& o, const typename S::Scores& s,
                                               uint32_t v) {
  using M = typename S::M;
#pragma unroll
  for (int step = 0; step < S::kChunkKeys / M::kStep; ++step) {
    typename M::A a;
    M::FromScores(a, &s[step * M::kScoresOfStep]);
#pragma unroll
    for (int n = 0; n < S::kD / 8; n += M::kValueBlocks) {
      typename M::B b[M::kValueBlocks];
      const uint32_t rows = v + step * M::kStep * S::Rows::kRowBytes;
      M::template LoadTransposed<typename S::Rows>(
          b, S::Rows::AtStep(rows, n / M::kValueBlocks * M::kTransposedSteps));
#pragma unroll
      for (int i = 0; i < M::kValueBlocks; ++i) MultiplyAdd<M>(o[n + i], a, b[i]);
    }
  }
}

// What the 16 rows of a warp have seen, over a set J of keys; a lane has rows LaneRow(lane, 0)
// and LaneRow(lane, 1):
//   m = max_{j in J} x_j,   l = sum_{j in J} 2^(x_j - m),   o = sum_{j in J} 2^(x_j - m) v_j
// (Milakov and Gimelshein 2018, arXiv:1805.02867). x is what scores.cuh's Logit makes of q . k.
template <class S>
class RowState {
 public:
  // `factor` > 0 takes s to x; to be said before the first Include.
  __device__ void SetFactor(float factor) { factor_ = factor; }

  // Adds keys to J, and turns s into P = 2^(x - m).
  __device__ __forceinline__ void Include(typename S::Scores& s) {
    float kept[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float m = fmaxf(s[0][2 * r], s[0][2 * r + 1]);
#pragma unroll
      for (auto& block : s) m = fmaxf(m, fmaxf(block[2 * r], block[2 * r + 1]));
      m *= factor_;
      m = fmaxf(RowMaximum(m), m_[r]);
      const float base = BaseOf(m);
      kept[r] = cuda::Exp2(m_[r] - base);
      m_[r] = m;
      float sum = 0.0f;
#pragma unroll
      for (auto& block : s) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i)
          sum += block[i] = cuda::Exp2(block[i] * factor_ - base);
      }
      l_[r] = l_[r] * kept[r] + sum;
    }
    // The maxima soon stop moving, and then o need not be touched.
    if (__any_sync(0xffffffffu, kept[0] != 1.0f || kept[1] != 1.0f)) Scale(kept);
  }

  // Ends the sums: o becomes the result, and lse(r), to base 2, may be asked for.
  __device__ __forceinline__ void Finish(float v_scale) {
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      l_[r] = RowSum(l_[r]);
      inverse[r] = l_[r] > 0 ? __fdividef(v_scale, l_[r]) : 0.0f;
    }
    Scale(inverse);
  }
  // -inf without keys; NaN stays NaN.
  __device__ float lse(int r) const { return l_[r] > 0 ? m_[r] + log2f(l_[r]) : l_[r] - INFINITY; }

  typename S::Output o = {};

 private:
  __device__ __forceinline__ void Scale(const float (&by)[2]) {
#pragma unroll
    for (auto& block : o) {
#pragma unroll
      for (int i = 0; i < 4; ++i) block[i] *= by[i / 2];
    }
  }

  float factor_ = 1.0f;
  float m_[2] = {-INFINITY, -INFINITY};
  float l_[2] = {};  // of this lane's own columns until Finish
};

// The results of some of this warp's rows, and their lse, to where all warps' are combined: `rows`
// is [warps, kTileRows, S::kPitch] in shared memory.
template <class S>
__device__ __forceinline__ void StoreRows(const RowState<S>& state, Range some, float* rows,
                                          float (&warp_lse)[S::kWarps][kTileRows]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = cuda::LaneRow(lane, r);
    if (row < some.begin || row >= some.end) continue;
    if (lane % 4 == 0) warp_lse[warp][row] = state.lse(r);
    constexpr int kColumns = S::M::kLaneColumns, kBlocks = kColumns / 2;
    float* const to = rows + (warp * kTileRows + row) * S::kPitch + lane % 4 * kColumns;
#pragma unroll
    for (int n = 0; n < S::kD / 8; n += kBlocks) {
      cuda::Pack<float, kColumns> columns;
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
        columns.at[i] = state.o[n + i % kBlocks][2 * r + i / kBlocks];
      *reinterpret_cast<decltype(columns)*>(to + 8 * n) = columns;
    }
  }
}

}  // namespace intarsia::attention::decode
