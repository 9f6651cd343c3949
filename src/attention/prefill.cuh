// The prefill kernel for sm_80 and newer: mma.sync fed by cp.async, after FlashAttention-2 (Dao
// 2023, arXiv:2307.08691).
//
// A CTA computes one tile of packed rows of one KV head, and walks over the keys that some row
// sees, in tiles. With x_ij = s_ij * log2(e), and s as in attention.h, each row keeps over the keys
// J seen so far a number m near the largest x_j, and
//   l = sum_{j in J} 2^(x_j - m),   o = sum_{j in J} 2^(x_j - m) v_j
// and in the end out = o / l, lse = (m + log2(l)) * ln(2).
//
// A warp owns whole rows, so S, P and O stay in its registers. Tiles of K and V go through three
// places in shared memory: one is being read while the next two are on their way,
//   step      reads  arriving         then asks for
//   S = Q K'  K_n    V_n              K_n+1
//   O += P V  V_n    K_n+1            V_n+1 (in the place of K_n)
#pragma once
#include "src/attention/prefill.h"
#include "src/attention/prefill_tile.cuh"
#include "src/core/cuda/launch.h"

namespace intarsia::attention::prefill {

// All scores of a lane as one array.
template <class S>
__device__ __forceinline__ auto& Flat(typename S::Scores& s) {
  return reinterpret_cast<float(&)[sizeof(s) / sizeof(float)]>(s);
}

// The bits from i on.
template <class Bits>
__device__ __forceinline__ Bits BitsFrom(int i) {
  constexpr int kBits = 8 * sizeof(Bits);
  return i >= kBits ? Bits{0} : ~Bits{0} << max(i, 0);
}

// s = -inf where the row does not see the key, or the key does not exist.
template <class S>
__device__ __forceinline__ void Mask(typename S::Scores& s, const Params& p,
                                     const Sequence& sequence, int first_row, int first_key,
                                     typename KeyStream<S>::KeyBits existing) {
  using Bits = typename KeyStream<S>::KeyBits;
  const int lane = threadIdx.x % 32, group = GroupSize(p);
#pragma unroll
  for (int block = 0; block < S::kRowBlocks; ++block) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Range keys =
          VisibleKeys(p, sequence, (first_row + 16 * block + 8 * r + lane / 4) / group);
      const Bits seen =
          existing & BitsFrom<Bits>(keys.begin - first_key) & ~BitsFrom<Bits>(keys.end - first_key);
      const Bits lane_seen = seen >> (lane % 4 * 2);
#pragma unroll
      for (int n = 0; n < S::kTileKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (!(lane_seen >> (8 * n + i) & 1)) s[block][n][2 * r + i] = -INFINITY;
        }
      }
    }
  }
}

// Writes the warp's rows of out and lse. `shared` is where its rows of Q were.
template <class S>
__device__ __forceinline__ void WriteRows(const Params& p, const RowTile& tile, int kv_head,
                                          int first_row, const RowState<S>& state, char* shared,
                                          bool aligned) {
  using T = typename S::T;
  const int lane = threadIdx.x % 32, d = static_cast<int>(p.head_dim);
  const int num_rows = tile.sequence.tokens.size() * GroupSize(p);
#pragma unroll
  for (int block = 0; block < S::kRowBlocks; ++block) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = 16 * block + 8 * r + lane / 4;
#pragma unroll
      for (int n = 0; n < S::kD / 8; ++n) {
        const int byte = (8 * n + lane % 4 * 2) * static_cast<int>(sizeof(T));
        *reinterpret_cast<cuda::Vec<T, 2 * sizeof(T)>*>(shared + S::Rows::Offset(row, byte / 16) +
                                                        byte % 16) = {
            {cuda::FromFloat<T>(state.o[block][n][2 * r]),
             cuda::FromFloat<T>(state.o[block][n][2 * r + 1])}};
      }
      if (p.lse && lane % 4 == 0 && first_row + row < num_rows) {
        const RowPlace place = PlaceOf(p, tile.sequence, kv_head, first_row + row);
        p.lse[place.head * p.num_tokens + place.token] = state.Lse(block, r);
      }
    }
  }
  __syncwarp();
  const RowPlace place = PlaceOf(p, tile.sequence, kv_head, first_row + lane);
  StoreRows<typename S::Rows, S::kWarpRows>(
      static_cast<T*>(p.out), shared,
      first_row + lane < num_rows ? (place.token * p.num_heads + place.head) * d : -1, d, aligned);
}

// The warp's rows of Q, to its rows in shared memory.
template <class S>
__device__ __forceinline__ void LoadQuery(const Params& p, const RowTile& tile, int kv_head,
                                          int first_row, char* shared, bool aligned) {
  const int lane = threadIdx.x % 32;
  const int num_rows = tile.sequence.tokens.size() * GroupSize(p) - first_row;
  const RowPlace place =
      PlaceOf(p, tile.sequence, kv_head, first_row + (lane < num_rows ? lane : 0));
  CopyRows<typename S::Rows, S::kWarpRows>(
      shared, static_cast<const typename S::T*>(p.q),
      place.token * p.q_token_stride + place.head * p.q_head_stride,
      __ballot_sync(0xffffffffu, lane < num_rows), static_cast<int>(p.head_dim), aligned);
}

// o and l of the warp's rows over the keys of the whole tile. `first_row` is the warp's first one.
template <class S>
__device__ __forceinline__ void Attend(const Params& p, const RowTile& tile, const KeyRows& rows,
                                       int first_row, char* shared, bool aligned,
                                       RowState<S>& state) {
  using Stream = KeyStream<S>;
  using Rows = typename S::Rows;
  const int lane = threadIdx.x % 32, last_row = tile.first_row + S::kTileRows - 1;
  const Sequence& sequence = tile.sequence;
  const Range keys = VisibleToRows(p, sequence, tile.first_row, last_row).some;
  VisibleRange visible = VisibleToRows(p, sequence, first_row, first_row + S::kWarpRows - 1);
  if (first_row >= sequence.tokens.size() * GroupSize(p)) visible.some.end = 0;
  const Logit<S::kType> logit(p);

  const auto next = [](int place) {
    return place < S::kQueryBytes + 2 * S::kPlaceBytes ? place + S::kPlaceBytes : S::kQueryBytes;
  };
  int k_place = S::kQueryBytes;
  Stream stream(p, rows, keys, aligned);
  if (keys.begin < stream.end()) stream.LoadKeys(shared + k_place, keys.begin);
  cuda::CpAsyncCommit();  // Q is in this group
  if (keys.begin < stream.end()) stream.LoadValues(shared + next(k_place));
  cuda::CpAsyncCommit();

  const uint32_t q = cuda::SharedAddress(shared) + (first_row - tile.first_row) * Rows::kRowBytes +
                     LaneOffsetA<Rows>(lane);
  for (int key = keys.begin; key < stream.end(); key += S::kTileKeys) {
    const int v_place = next(k_place), free_place = next(v_place), next_key = key + S::kTileKeys;
    const bool computes = key < visible.some.end && key > visible.some.begin - S::kTileKeys;
    typename S::Scores s;

    cuda::CpAsyncWait<1>();
    __syncthreads();  // K is here, and nobody reads the free place any more
    if (next_key < stream.end()) stream.LoadKeys(shared + free_place, next_key);
    cuda::CpAsyncCommit();
    if (computes) {
      MultiplyKeys<S>(s, q, cuda::SharedAddress(shared) + k_place + LaneOffsetB<Rows>(lane));
      if (!logit.folds()) logit.Apply(Flat<S>(s));
      const auto existing = Stream::Existing(shared + k_place);
      if (key < visible.all.begin || next_key > visible.all.end || ~existing)
        Mask<S>(s, p, sequence, first_row, key, existing);
      state.FollowMaximum(s);
    }

    cuda::CpAsyncWait<1>();
    __syncthreads();  // V is here, and nobody reads K any more
    if (next_key < stream.end()) stream.LoadValues(shared + k_place);
    cuda::CpAsyncCommit();
    if (computes)
      state.AddValues(s, cuda::SharedAddress(shared) + v_place +
                             S::M::template LaneOffsetTransposed<Rows>(lane));
    k_place = free_place;
  }
  cuda::CpAsyncWait<0>();
  __syncwarp();  // the warp's rows of Q may now be overwritten, even if there was no key
}

// Grid: tiles of rows times KV heads, the heads of one tile next to each other.
template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kCtasPerSm)
    PrefillKernel(const __grid_constant__ Params p, const __grid_constant__ PrefillRows which,
                  const __grid_constant__ Divisor page_size, bool aligned) {
  extern __shared__ __align__(128) char shared[];
  __shared__ RowTile tile;  // not in registers, which the loop needs
  const int num_kv_heads = static_cast<int>(p.cache.num_kv_heads);
  // The same in all lanes, and by this the compiler knows it: values that derive from it need no
  // registers of the lanes.
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  const int kv_head = static_cast<int>(blockIdx.x) % num_kv_heads;
  const int index = static_cast<int>(blockIdx.x) / num_kv_heads;
  bool found = false;
  if (warp == 0) {
    RowTile tile_found;
    found =
        FindRowTile<S::kTileRows>(p, which.min_packed_rows, which.fill_padding, index, tile_found);
    if (threadIdx.x == 0) tile = tile_found;
  }
  if (!__syncthreads_or(found)) return;

  const int first_row = tile.first_row + warp * S::kWarpRows;
  char* const warp_rows = shared + warp * S::kWarpRows * S::Rows::kRowBytes;
  LoadQuery<S>(p, tile, kv_head, first_row, warp_rows, aligned);
  RowState<S> state(Logit<S::kType>(p).factor());
  Attend<S>(p, tile, KeyRows(p, page_size, tile.sequence, kv_head), first_row, shared, aligned,
            state);
  state.Finish();
  WriteRows<S>(p, tile, kv_head, first_row, state, warp_rows, aligned);
}

template <class S>
inline const cuda::Kernel kKernel("PrefillKernel", reinterpret_cast<const void*>(&PrefillKernel<S>),
                                  S::kSharedBytes);

// Whether CopyRows can count offsets in 16 bytes with 32 bits.
template <class T>
bool OffsetsFit(const Params& p) {
  constexpr int64_t kLimit = (int64_t{1} << 36) / static_cast<int64_t>(sizeof(T));
  const CacheView& c = p.cache;
  return p.num_tokens * p.q_token_stride < kLimit &&
         c.num_pages * c.k_strides.page + c.page_size * c.k_strides.slot < kLimit;
}

// No lengths make more tiles: each sequence, and the padding, has at most one that is not full.
template <class S>
int64_t MaxTiles(const Params& p, const PrefillRows& which) {
  const int64_t rows = p.num_tokens * (p.num_heads / p.num_kv_heads());
  const int64_t num_seqs = std::min(p.num_seqs, rows / std::max<int64_t>(which.min_packed_rows, 1));
  return (rows + (num_seqs + which.fill_padding) * (S::kTileRows - 1)) / S::kTileRows;
}

}  // namespace intarsia::attention::prefill

namespace intarsia::attention {

template <DType kType>
Status LaunchPrefillOf(const Params& params, const CudaContext& context, PrefillRows rows) {
  Params p = params;
  if (p.num_tokens == 0 || p.num_heads == 0) return {};
  if (p.cache.dtype != kType)
    return Unimplemented(
        Text("K and V have dtype ", Name(p.cache.dtype), "; built is that of q, ", Name(kType)));
  if (p.head_dim % 8 != 0)
    return Unimplemented(Text("d is ", p.head_dim, "; built are multiples of 8"));
  if (p.num_tokens * p.num_heads > kMaxCount || p.max_len_k > kMaxCount ||
      p.cache.page_size > kMaxCount || p.cache.num_pages > kMaxCount)
    return Unimplemented(Text("more than ", kMaxCount, " query rows, keys or pages"));
  // So that a position plus a window fits.
  p.window_left = std::min(p.window_left, 2 * kMaxCount);
  p.window_right = std::min(p.window_right, 2 * kMaxCount);
  return DispatchInt<32, 64, 96, 128, 192, 256>("d", p.head_dim, [&]<int kD>() {
    using S = prefill::Shape<kType, kD>;
    const int64_t grid = prefill::MaxTiles<S>(p, rows) * p.num_kv_heads();
    const cuda::Shape shape{{grid}, dim3(S::kThreads), S::kSharedBytes};
    const bool aligned = RowsAligned<typename S::T>(p) && prefill::OffsetsFit<typename S::T>(p);
    return cuda::Launch(context, prefill::kKernel<S>, shape, p, rows,
                        Divisor(std::max<int64_t>(p.cache.page_size, 1)), aligned);
  });
}

}  // namespace intarsia::attention
