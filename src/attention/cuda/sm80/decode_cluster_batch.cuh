// What ClusterDecodeKernel (decode_cluster.cuh) is built with, and where it finds rows and keys.
#pragma once
#include <algorithm>

#include "src/attention/cuda/paging.cuh"
#include "src/attention/cuda/sm80/decode_plain.cuh"
#include "src/attention/cuda/sm80/decode_tile.cuh"

namespace intarsia::attention::decode {

inline constexpr int kClusterCtas = 8;  // the most of a portable cluster
inline constexpr int kMaxClusterSeqs = kTileRows;

// kOne: of one sequence. One CTA on a multiprocessor, with twice the warps that two CTAs have
// elsewhere if their rings have room for several chunks then. With several sequences, results of
// those that a warp is done with lie behind the rings.
template <DType kKeyType, int kDim, bool kOneSequence>
struct ClusterConfig : PlainConfig<TileConfig<kKeyType, kDim, TileSize::kLarge>> {
  using Base = TileConfig<kKeyType, kDim, TileSize::kLarge>;
  static constexpr bool kOne = kOneSequence;
  static constexpr int kWarps = kDim == 128 || (kDim == 64 && !Base::kFp8) ? 8 : 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kChunks = kOne ? Base::kChunks : std::min(Base::kChunks, 2);
  static constexpr int kRingBytes = kChunks * 2 * Base::kChunkBytes;
  static constexpr int kResultBytes = kWarps * kTileRows * Base::kPitch * 4;
  static constexpr int kResultsAt = kOne ? 0 : Base::kQueryBytes + kWarps * kRingBytes;
  static constexpr int kSharedBytes =
      Base::kQueryBytes + kWarps * kRingBytes + (kOne ? 0 : kResultBytes);
  static_assert(kResultsAt + kResultBytes <= kSharedBytes);
};

// The sequences of a call, one a lane: what of them is in memory, and then what is made of it. The
// only one is that of all lanes.
template <class S>
class ClusterBatch {
 public:
  // Nothing that is read waits for anything else.
  __device__ __forceinline__ explicit ClusterBatch(const Params& p)
      : p_(p),
        count_(LoadIf(true, p.num_seqs_device, 0)),
        front_(LoadIf(true, p.cu_seqlens_q, 0)),
        end_(LoadIf(Index() < p.num_seqs, p.cu_seqlens_q, Index() + 1)),
        used_(LoadIf(Index() < p.num_seqs, p.seqused_k, Index())) {}

  __device__ __forceinline__ void Compute(int max_packed_rows) {
    const bool counts = Index() < NumSeqsFrom(p_, count_);
    int end = EndFrom<int>(p_, front_);
    const int own_end = counts ? EndFrom<int>(p_, end_) : 0;
    const Range tokens = kOne ? Range{end, max(end, own_end)} : RangeOfLane(own_end, end);
    own_ = SequenceOver<int>(p_, Index(), tokens, {}, used_, 0);
    const int rows = tokens.size() * GroupSize(p_);
    taken_ = rows > 0 && rows <= max_packed_rows;
    if (taken_) keys_ = max(VisibleKeys(p_, own_, tokens.size() - 1).end, 0);
    chunks_ = (keys_ + S::kChunkKeys - 1) / S::kChunkKeys;
    through_ = kOne ? chunks_ : SumThroughLane(chunks_);
    line_ = kOne ? chunks_ : __shfl_sync(0xffffffffu, through_, 31);
  }

  __device__ __forceinline__ int line() const { return line_; }  // chunks of all sequences
  __device__ __forceinline__ int keys() const { return keys_; }  // of the lane's sequence

  // Whose a chunk of the line is, and its first key there.
  struct Chunk {
    int sequence, key;
  };
  __device__ __forceinline__ Chunk At(int chunk) const {
    if constexpr (kOne) return {0, chunk * S::kChunkKeys};
    const bool past = threadIdx.x % 32 < p_.num_seqs && chunk >= through_;
    const int sequence = __popc(__ballot_sync(0xffffffffu, past));
    return {sequence, (chunk - Of(through_ - chunks_, sequence)) * S::kChunkKeys};
  }
  __device__ __forceinline__ int KeysOf(int sequence) const { return Of(keys_, sequence); }

  // The packed rows of a sequence.
  __device__ __forceinline__ Range RowsOf(int sequence) const {
    return {Of(own_.tokens.begin, sequence) * GroupSize(p_),
            Of(own_.tokens.end, sequence) * GroupSize(p_)};
  }

  // What row lane % 16 of the tile is: how many keys of its sequence it sees, whether it is one of
  // a sequence, and whether it is to be written. One that does not exist sees any number, so that
  // its maximum does not move.
  struct Row {
    int seen;
    bool counts, written;
  };
  __device__ __forceinline__ Row OwnRow(bool fill_padding) const {
    const int row = threadIdx.x % kTileRows, token = TokenOfRow(p_, row);
    int sequence = 0;
    if constexpr (!kOne) {
      for (int i = 0; i < static_cast<int>(p_.num_seqs) - 1; ++i)
        sequence += token >= __shfl_sync(0xffffffffu, own_.tokens.end, i);
    }
    Sequence s;
    s.tokens = {Of(own_.tokens.begin, sequence), Of(own_.tokens.end, sequence)};
    s.len_k = Of(own_.len_k, sequence);
    const bool taken = Of(taken_, sequence);
    if (row >= static_cast<int>(p_.num_tokens) * GroupSize(p_)) return {kMaxCount, false, false};
    if (token < s.tokens.begin || token >= s.tokens.end) return {0, false, fill_padding};
    return {VisibleKeys(p_, s, token - s.tokens.begin).end, true, taken};
  }

 private:
  static constexpr bool kOne = S::kOne;
  static __device__ int Index() { return kOne ? 0 : static_cast<int>(threadIdx.x % 32); }
  static __device__ __forceinline__ int Of(int x, int sequence) {
    return kOne ? x : __shfl_sync(0xffffffffu, x, sequence);
  }

  const Params& p_;
  int64_t count_, front_, end_, used_;
  Sequence own_;
  bool taken_ = false;
  int keys_ = 0, chunks_ = 0, through_ = 0, line_ = 0;
};

// The keys of the line, as a ring finds them. The page numbers of an only sequence's first ones are
// on their way before it is known how many keys there are.
template <class S>
class ClusterKeys {
 public:
  __device__ __forceinline__ ClusterKeys(const Params& p, const Divisor& page_size,
                                         const ClusterBatch<S>& batch)
      : batch_(batch),
        pages_(p, page_size),
        end_(S::kOne ? static_cast<int>(p.max_len_k) : static_cast<int>(kMaxCount)) {}

  __device__ __forceinline__ void EndAt(int end) { end_ = min(end_, end); }
  __device__ __forceinline__ void Clear() { end_ = 0; }
  __device__ __forceinline__ bool Has(int key) const { return key < end_; }
  __device__ __forceinline__ void Find(int key, KeyPlace& place) const {
    if constexpr (S::kOne) {
      if (key < end_) place = pages_.Find(0, key);
    } else {
      typename ClusterBatch<S>::Chunk chunk{};
#pragma unroll
      for (int i = 0; i < 32; i += S::kChunkKeys) {
        const auto at = batch_.At(__shfl_sync(0xffffffffu, key, i) / S::kChunkKeys);
        if (static_cast<int>(threadIdx.x % 32) >= i) chunk = at;
      }
      chunk.key += static_cast<int>(threadIdx.x % S::kChunkKeys);
      place.page_high = 1;  // none
      if (chunk.key < batch_.KeysOf(chunk.sequence)) place = pages_.Find(chunk.sequence, chunk.key);
    }
  }
  __device__ __forceinline__ const Pages& pages() const { return pages_; }

 private:
  const ClusterBatch<S>& batch_;
  const Pages pages_;
  int end_;
};

}  // namespace intarsia::attention::decode
