// The parts of split-KV decode that one warp runs: its ring of chunks of K and V, the products on
// them, and the online softmax of its rows.
#pragma once
#include "src/attention/decode_plan.h"
#include "src/attention/mma.cuh"
#include "src/attention/tile.cuh"

namespace intarsia::attention::decode {

inline constexpr int kChunkKeys = 16;  // that a warp loads and multiplies at a time

// How a kernel for head dims up to kDim cuts its work.
template <DType kDType, int kDim>
struct Shape {
  static constexpr DType kType = kDType;
  using T = cuda::DeviceT<kType>;
  using M = Mma<kType>;
  using Rows = SwizzledRows<kDim * Bytes(kType)>;
  static constexpr int kD = kDim;
  static constexpr int kWarps = Rows::kRowBytes <= 512 ? 4 : 2;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRoundKeys = kWarps * kChunkKeys;  // of all warps
  // Shared memory: Q, then a ring of K and V for each warp, as long as two CTAs on sm_90 have room
  // for, with one KB each for the system and for __shared__.
  static constexpr int kQueryBytes = kTileRows * Rows::kRowBytes;
  static constexpr int kChunkBytes = kChunkKeys * Rows::kRowBytes;
  static constexpr int kFreeBytes = (228 / kCtasPerSm - 2) * 1024 - kQueryBytes;
  static constexpr int kChunks = std::clamp(kFreeBytes / (kWarps * 2 * kChunkBytes), 1, 4);
  static constexpr int kRingBytes = kChunks * 2 * kChunkBytes;
  static constexpr int kSharedBytes = kQueryBytes + kWarps * kRingBytes;
  // In the end the warps' results are combined there; eight more floats a row avoid bank conflicts.
  static constexpr int kPitch = kD + 8;
  static_assert(kWarps * kTileRows * kPitch * 4 <= kSharedBytes);

  using Scores = float[2][4];       // 16 rows x 16 keys
  using Output = float[kD / 8][4];  // 16 rows x kD
};

// 16 rows on their way to shared memory: kLanes lanes share a row, and each knows where its rows
// begin in the source.
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

  // Asynchronous if all rows are aligned. Rows that do not exist and columns from d on become
  // zeros, so that no rubbish in a cache, a NaN say, enters a product.
  __device__ __forceinline__ void Start(uint32_t target, const void* source, int d,
                                        bool aligned) const {
    if (!aligned) return CopyElements(target, source, d);
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
  using T = typename S::T;
  using Rows = typename S::Rows;
  static constexpr int kElements = 16 / static_cast<int>(sizeof(T));
  // The swizzle moves a unit within so many, so units kLanes apart are so in shared memory, too.
  static constexpr int kLanes = Rows::kMask + 1;
  static constexpr int kRowStep = 32 / kLanes;
  static constexpr int kRows = 16 / kRowStep;  // of a lane
  static __device__ int FirstRow() { return threadIdx.x % 32 / kLanes; }
  static __device__ int FirstUnit() { return threadIdx.x % kLanes; }

  __device__ __forceinline__ void CopyElements(uint32_t target, const void* source, int d) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const T* const row = static_cast<const T*>(source) + places_[i];
      const int end = existing_ >> i * kRowStep & 1 ? d : 0;
#pragma unroll 1
      for (int column = FirstUnit(); column < S::kD; column += kLanes) {
        const int place = Rows::Offset(FirstRow() + i * kRowStep, column / kElements);
        static_cast<T*>(__cvta_shared_to_generic(target + place))[column % kElements] =
            column < end ? row[column] : cuda::FromFloat<T>(0.0f);
      }
    }
  }

  int64_t places_[kRows];
  uint32_t existing_;  // bit i * kRowStep: of this lane's row i
};

// A warp's chunks of K and V, in the order K0 V0 K1 V1 ..., kChunks of each on their way. A chunk
// that is asked for takes the place of the one that was read last. Lanes find one key each, of two
// chunks at once: the first 16 lanes those of the next chunk, the others those of the one after it.
// The page numbers for that are asked for when the two chunks before are.
template <class S>
class Ring {
 public:
  // The warp's chunks of `keys` begin at multiples of kRoundKeys after its first one.
  __device__ Ring(const Params& p, const Divisor& page_size, const Sequence& sequence, int kv_head,
                  Range keys, bool aligned, uint32_t shared)
      : p_(p),
        rows_(p, page_size, sequence, kv_head),
        aligned_(aligned),
        place_(shared),
        end_of_ring_(shared + S::kRingBytes),
        end_(rows_.layer_exists() ? keys.end : keys.begin),
        key_(keys.begin +
             static_cast<int>(threadIdx.x / 32 * kChunkKeys +
                              threadIdx.x % 32 / 16 * S::kRoundKeys + threadIdx.x % kChunkKeys)) {
    if (key_ < end_) next_ = rows_.Find(key_);
  }

  // Every call makes one group of copies, so that groups count chunks.
  __device__ __forceinline__ void AskForKeys() {
    if (!odd_) {
      const bool exists = key_ < end_ && rows_.Exists(next_);
      row_ = exists ? rows_.Offset(next_) : 0;
      found_ = __ballot_sync(0xffffffffu, exists);
      key_ += 2 * S::kRoundKeys;
      if (key_ < end_) next_ = rows_.Find(key_);
    }
    const int first_lane = odd_ ? kChunkKeys : 0;
    const uint32_t existing = found_ >> first_lane & kAllExist;
    existing_ = existing_ << kChunkKeys | existing;
    copy_ = RowCopy<S>(row_, existing, first_lane);
    odd_ = !odd_;
    Start(place_, p_.cache.k);
  }
  __device__ __forceinline__ void AskForValues() {
    Start(place_ + S::kChunkBytes, p_.cache.v);
    place_ += 2 * S::kChunkBytes;
    if (place_ == end_of_ring_) place_ -= S::kRingBytes;
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
  __device__ uint32_t existing() const {
    return static_cast<uint32_t>(existing_ >> (S::kChunks - 1) * kChunkKeys) & kAllExist;
  }
  static constexpr uint32_t kAllExist = (1u << kChunkKeys) - 1;

 private:
  static_assert(S::kChunks * kChunkKeys <= 64);
  __device__ __forceinline__ void Start(uint32_t target, const void* cache) const {
    const auto* const source = static_cast<const typename S::T*>(cache) + rows_.head_offset();
    copy_.Start(target, source, static_cast<int>(p_.head_dim), aligned_);
    cuda::CpAsyncCommit();
  }

  const Params& p_;
  const KeyRows rows_;
  const bool aligned_;
  uint32_t place_;  // of the oldest chunks
  const uint32_t end_of_ring_;
  const int end_;
  int key_;                // that this lane finds next
  KeyPlace next_;          // of key_
  int64_t row_ = 0;        // where the key found last lies
  uint32_t found_ = 0;     // bit i: whether what lane i found last exists
  bool odd_ = false;       // whether the next chunk is the second one of those found last
  RowCopy<S> copy_;        // of the chunk asked for last
  uint64_t existing_ = 0;  // kChunkKeys bits for each chunk of K, the newest lowest
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
  for (int step = 0; step < S::Rows::kRowBytes / 32; ++step) {
    typename M::A a;
    typename M::B b[2];
    M::LoadA(a, S::Rows::AtStep(q, step));
    M::LoadB(b, S::Rows::AtStep(k, step));
    MultiplyAdd<M>(s[0], a, b[0]);
    MultiplyAdd<M>(s[1], a, b[1]);
  }
}

// o += P V, with P in the layout of s.
template <class S>
__device__ __forceinline__ void MultiplyValues(typename S::Output& o, const typename S::Scores& s,
                                               uint32_t v) {
  using M = typename S::M;
#pragma unroll
  for (int step = 0; step < kChunkKeys / M::kStep; ++step) {
    typename M::A a;
    M::FromScores(a, &s[step * M::kScoresOfStep]);
#pragma unroll
    for (int n = 0; n < S::kD / 8; n += 2) {
      typename M::B b[2];
      const uint32_t rows = v + step * M::kStep * S::Rows::kRowBytes;
      M::template LoadTransposed<typename S::Rows>(
          b, S::Rows::AtStep(rows, n / 2 * M::kTransposedSteps));
      MultiplyAdd<M>(o[n], a, b[0]);
      MultiplyAdd<M>(o[n + 1], a, b[1]);
    }
  }
}

// What the 16 rows of a warp have seen, over a set J of keys; a lane has rows lane / 4 and lane / 4
// + 8:
//   m = max_{j in J} x_j,   l = sum_{j in J} 2^(x_j - m),   o = sum_{j in J} 2^(x_j - m) v_j
// (Milakov and Gimelshein 2018, arXiv:1805.02867). x is what tile.cuh's Logit makes of q . k.
template <class S>
class RowState {
 public:
  // `factor` > 0 takes s to x.
  __device__ explicit RowState(float factor) : factor_(factor) {}

  // Adds keys to J, and turns s into P = 2^(x - m).
  __device__ __forceinline__ void Include(typename S::Scores& s) {
    float kept[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float m =
          fmaxf(fmaxf(s[0][2 * r], s[0][2 * r + 1]), fmaxf(s[1][2 * r], s[1][2 * r + 1])) * factor_;
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
      m = fmaxf(m, m_[r]);
      // -inf - -inf would be NaN; of a row that has seen nothing, any other number gives 2^-inf =
      // 0.
      const float base = m == -INFINITY ? 0.0f : m;
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
  __device__ __forceinline__ void Finish() {
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      l_[r] += __shfl_xor_sync(0xffffffffu, l_[r], 1);
      l_[r] += __shfl_xor_sync(0xffffffffu, l_[r], 2);
      inverse[r] = l_[r] > 0 ? __fdividef(1.0f, l_[r]) : 0.0f;
    }
    Scale(inverse);
  }
  __device__ float lse(int r) const { return l_[r] > 0 ? m_[r] + log2f(l_[r]) : -INFINITY; }

  typename S::Output o = {};

 private:
  __device__ __forceinline__ void Scale(const float (&by)[2]) {
#pragma unroll
    for (auto& block : o) {
#pragma unroll
      for (int i = 0; i < 4; ++i) block[i] *= by[i / 2];
    }
  }

  const float factor_;
  float m_[2] = {-INFINITY, -INFINITY};
  float l_[2] = {};  // of this lane's own columns until Finish
};

}  // namespace intarsia::attention::decode
