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
// or through four: K_n and V_n are read, K_n+1 and V_n+1 on their way, and a tile has one barrier.
#pragma once
#include "src/attention/cuda/fragments.cuh"
#include "src/attention/cuda/rows.cuh"
#include "src/attention/cuda/scores.cuh"
#include "src/attention/cuda/sm80/prefill.h"
#include "src/attention/cuda/sm80/prefill_schedule.cuh"
#include "src/attention/cuda/sm80/prefill_tile.cuh"
#include "src/core/cuda/launch.h"

namespace intarsia::attention::prefill {

// All scores of a lane as one array.
template <class S>
__device__ __forceinline__ auto& Flat(typename S::Scores& s) {
  return reinterpret_cast<float(&)[sizeof(s) / sizeof(float)]>(s);
}

// What a CTA computes, in shared memory: the loop needs all registers.
struct Tile : RowTile {
  int kv_head = 0;
  HeadRows rows;
};

// Writes the warp's rows of out and lse. `shared` is where its rows of Q were.
template <class S>
__device__ __forceinline__ void WriteRows(const Params& p, const Tile& tile, int first_row,
                                          const RowState<S>& state, char* shared, bool aligned) {
  using T = typename S::T;
  constexpr int kColumns = S::M::kLaneColumns, kBlocks = kColumns / 2;
  const int lane = threadIdx.x % 32, dv = static_cast<int>(p.cache.v_head_dim);
  const int num_rows = tile.sequence.tokens.size() * GroupSize(p);
#pragma unroll
  for (int block = 0; block < S::kRowBlocks; ++block) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = cuda::LaneRow(lane, 2 * block + r);
      const RowPlace place = PlaceOf(p, tile.sequence, tile.kv_head, first_row + row);
      const bool exists = first_row + row < num_rows;
      if (p.lse && lane % 4 == 0 && exists)
        p.lse[place.head * p.num_tokens + place.token] = state.Lse(block, r);
#pragma unroll
      for (int n = 0; n < S::kD / 8; n += kBlocks) {
        const int column = 8 * n + lane % 4 * kColumns;
        if constexpr (S::kFp8) {  // four neighboring lanes write 32 bytes or more
          const float o[4] = {state.o[block][n][2 * r], state.o[block][n + 1][2 * r],
                              state.o[block][n][2 * r + 1], state.o[block][n + 1][2 * r + 1]};
          if (exists && column < dv)
            StoreColumns(p.out, p.out_dtype, (place.token * p.num_heads + place.head) * dv + column,
                         o, 1.0f, aligned);
        } else {
          const int byte = column * static_cast<int>(sizeof(T));
          *reinterpret_cast<cuda::Pack<T, 2>*>(shared + S::Rows::Offset(row, byte / 16) +
                                               byte % 16) = {
              {cuda::FromFloat<T>(state.o[block][n][2 * r]),
               cuda::FromFloat<T>(state.o[block][n][2 * r + 1])}};
        }
      }
    }
  }
  if constexpr (S::kFp8) return;
  __syncwarp();
  const RowPlace place = PlaceOf(p, tile.sequence, tile.kv_head, first_row + lane);
  cuda::StoreRows<typename S::Rows, S::kWarpRows>(
      static_cast<T*>(p.out), shared,
      first_row + lane < num_rows ? (place.token * p.num_heads + place.head) * dv : -1, dv,
      aligned);
}

// The warp's rows of Q, to its rows in shared memory. Returns what scores are to be multiplied by
// for it.
template <class S>
__device__ __forceinline__ float LoadQuery(const Params& p, const Tile& tile, int first_row,
                                           char* shared, bool aligned) {
  using Rows = typename S::QueryRows;
  const int lane = threadIdx.x % 32;
  const int num_rows = tile.sequence.tokens.size() * GroupSize(p) - first_row;
  const RowPlace place =
      PlaceOf(p, tile.sequence, tile.kv_head, first_row + (lane < num_rows ? lane : 0));
  const int64_t offset = place.token * p.q_token_stride + place.head * p.q_head_stride;
  const uint32_t exist = __ballot_sync(0xffffffffu, lane < num_rows);
  if constexpr (S::kFp8) {
    const auto load = [&](int row, int column) {
      const int64_t from = __shfl_sync(0xffffffffu, offset, row) + column;
      if (!(exist >> row & 1) || column >= p.head_dim) return cuda::Eight<float>{};
      return cuda::LoadEightFloats(p.q, p.dtype, from, aligned);
    };
    const float factor = cuda::QueryScale<S::kWarpRows, S::kD>(p.dtype, load);
#pragma unroll 4
    for (int i = lane; i < S::kWarpRows * S::kD / 8; i += 32) {
      const int row = i / (S::kD / 8), column = i % (S::kD / 8) * 8;
      cuda::Eight<float> q = load(row, column);
#pragma unroll
      for (float& x : q.at) x *= factor;
      S::M::template StoreQuery<Rows>(shared, row, column, q);
    }
    return 1.0f / factor;
  } else {
    cuda::CopyRows<Rows, S::kWarpRows>(shared, static_cast<const typename S::T*>(p.q), offset,
                                       exist, static_cast<int>(p.head_dim), aligned);
    return 1.0f;
  }
}

// The warp's rows, and what of a tile of K and V each step reads.
template <class S>
struct WarpRows {
  const Params& p;
  const Tile& tile;
  const Logit<S::kType>& logit;
  int first_row;
  uint32_t q;  // the lane's address
  VisibleRange visible;

  __device__ __forceinline__ WarpRows(const Params& params, const Tile& row_tile,
                                      const Logit<S::kType>& logits, int row, const char* shared)
      : p(params),
        tile(row_tile),
        logit(logits),
        first_row(row),
        q(cuda::SharedAddress(shared) + (row - row_tile.first_row) * S::QueryRows::kRowBytes +
          cuda::LaneOffsetA<typename S::QueryRows>(static_cast<int>(threadIdx.x) % 32)),
        visible(VisibleToRows(params, row_tile.sequence, row, row + S::kWarpRows - 1)) {
    if (row >= row_tile.sequence.tokens.size() * GroupSize(params)) visible.some.end = 0;
  }

  // Whether some row sees a key of the tile from `key` on.
  __device__ bool Computes(int key) const {
    return key < visible.some.end && key > visible.some.begin - S::kTileKeys;
  }

  // s = Q K', masked; m follows it.
  __device__ __forceinline__ void TakeKeys(typename S::Scores& s, RowState<S>& state, int key,
                                           const char* place) const {
    const int lane = threadIdx.x % 32;
    MultiplyKeys<S>(
        s, q, cuda::SharedAddress(place) + S::M::template LaneOffsetKeys<typename S::Rows>(lane));
    if (!logit.folds()) {
      logit.Apply(Flat<S>(s));
      if (p.alibi_slopes.data) SubtractAlibi(s, p, tile.sequence, tile.kv_head, first_row, key);
    }
    const auto existing = KeyStream<S>::Existing(place);
    const bool all_exist = existing == BitsFrom<typename KeyStream<S>::KeyBits>(0);
    if (key < visible.all.begin || key + S::kTileKeys > visible.all.end || !all_exist)
      Mask(s, p, tile.sequence, first_row, key, existing);
    state.FollowMaximum(s);
  }

  // o += P V.
  __device__ __forceinline__ void TakeValues(typename S::Scores& s, RowState<S>& state,
                                             const char* place) const {
    const int lane = threadIdx.x % 32;
    state.AddValues(s, cuda::SharedAddress(place) +
                           S::M::template LaneOffsetTransposed<typename S::Rows>(lane));
  }
};

// o and l of the warp's rows over `keys`, with three places; Q is about to arrive.
template <class S>
__device__ __forceinline__ void AttendByThree(KeyStream<S>& stream, const WarpRows<S>& rows,
                                              Range keys, char* shared, RowState<S>& state) {
  const auto next = [](int place) {
    return place < S::kQueryBytes + 2 * S::kPlaceBytes ? place + S::kPlaceBytes : S::kQueryBytes;
  };
  int k_place = S::kQueryBytes;
  if (keys.begin < stream.end()) stream.LoadKeys(shared + k_place, keys.begin);
  cuda::CpAsyncCommit();  // Q is in this group
  if (keys.begin < stream.end()) stream.LoadValues(shared + next(k_place));
  cuda::CpAsyncCommit();

  for (int key = keys.begin; key < stream.end(); key += S::kTileKeys) {
    const int v_place = next(k_place), free_place = next(v_place), next_key = key + S::kTileKeys;
    const bool computes = rows.Computes(key);
    typename S::Scores s;

    cuda::CpAsyncWait<1>();
    __syncthreads();  // K is here, and nobody reads the free place any more
    if (next_key < stream.end()) stream.LoadKeys(shared + free_place, next_key);
    cuda::CpAsyncCommit();
    if (computes) rows.TakeKeys(s, state, key, shared + k_place);

    cuda::CpAsyncWait<1>();
    __syncthreads();  // V is here, and nobody reads K any more
    if (next_key < stream.end()) stream.LoadValues(shared + k_place);
    cuda::CpAsyncCommit();
    if (computes) rows.TakeValues(s, state, shared + v_place);
    k_place = free_place;
  }
}

// The same with four.
template <class S>
__device__ __forceinline__ void AttendByFour(KeyStream<S>& stream, const WarpRows<S>& rows,
                                             Range keys, char* shared, RowState<S>& state) {
  const auto load = [&](char* places, int key) {
    if (key < stream.end()) {
      stream.LoadKeys(places, key);
      stream.LoadValues(places + S::kPlaceBytes);
    }
    cuda::CpAsyncCommit();
  };
  char *read = shared + S::kQueryBytes, *arriving = read + 2 * S::kPlaceBytes;
  load(read, keys.begin);  // Q is in this group
  for (int key = keys.begin; key < stream.end(); key += S::kTileKeys) {
    cuda::CpAsyncWait<0>();
    __syncthreads();  // K and V are here, and nobody reads the others any more
    load(arriving, key + S::kTileKeys);
    if (rows.Computes(key)) {
      typename S::Scores s;
      rows.TakeKeys(s, state, key, read);
      rows.TakeValues(s, state, read + S::kPlaceBytes);
    }
    char* const was_read = read;
    read = arriving;
    arriving = was_read;
  }
}

// o and l of the warp's rows over the keys of the whole tile. `first_row` is the warp's first one.
template <class S>
__device__ __forceinline__ void Attend(const Params& p, const Tile& tile, const KeyPlaces& places,
                                       int first_row, const Logit<S::kType>& logit, char* shared,
                                       bool aligned, RowState<S>& state) {
  const int last_row = tile.first_row + S::kTileRows - 1;
  const Range keys = VisibleToRows(p, tile.sequence, tile.first_row, last_row).some;
  const WarpRows<S> rows(p, tile, logit, first_row, shared);
  KeyStream<S> stream(p, places, tile.rows, keys, aligned);
  if constexpr (S::kTiles.places == 4)
    AttendByFour(stream, rows, keys, shared, state);
  else
    AttendByThree(stream, rows, keys, shared, state);
  cuda::CpAsyncWait<0>();
  __syncwarp();  // the warp's rows of Q may now be overwritten, even if there was no key
}

// Grid: tiles of rows times KV heads, the heads of one tile next to each other.
template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kTiles.ctas_per_sm)
    PrefillKernel(const __grid_constant__ Params p, const __grid_constant__ PrefillRows which,
                  const __grid_constant__ Divisor page_size, bool aligned) {
  extern __shared__ __align__(128) char shared[];
  __shared__ Tile tile;
  // The same in all lanes, and by this the compiler knows it: values that derive from it need no
  // registers of the lanes.
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  const int num_kv_heads = static_cast<int>(p.cache.num_kv_heads);
  const int index = static_cast<int>(blockIdx.x) / num_kv_heads;
  if (warp == 0) {
    const int kv_head = static_cast<int>(blockIdx.x) - index * num_kv_heads;
    const RowTile found = FindRowTile<S::kTileRows>(p, which.min_packed_rows, index);
    if (threadIdx.x == 0) tile = {found, kv_head, HeadRowsOf(p, kv_head, S::KeyBytes(p))};
  }
  __syncthreads();
  if (!tile.exists) {
    if (which.fill_padding) {
      const int unused_tiles = static_cast<int>(gridDim.x) / num_kv_heads - index + tile.share;
      FillPadding(p, tile.padding, tile.share * num_kv_heads + tile.kv_head,
                  unused_tiles * num_kv_heads);
    }
    return;
  }

  const int first_row = tile.first_row + warp * S::kWarpRows;
  char* const warp_rows = shared + warp * S::kWarpRows * S::QueryRows::kRowBytes;
  Logit<S::kType> logit(p, S::kScaled ? ScoreScale(p, tile.sequence.index, tile.kv_head) : p.scale);
  const float query_factor = LoadQuery<S>(p, tile, first_row, warp_rows, aligned);
  if constexpr (S::kFp8) logit.Scale(query_factor);
  RowState<S> state(logit.factor(), p.cache.v_head_dim);
  Attend<S>(p, tile, KeyPlaces(p, page_size, tile.sequence), first_row, logit, shared, aligned,
            state);
  float sink[S::kRowBlocks][2];
#pragma unroll
  for (int i = 0; i < 2 * S::kRowBlocks; ++i) {
    const int row = first_row + cuda::LaneRow(static_cast<int>(threadIdx.x) % 32, i);
    sink[i / 2][i % 2] = SinkOf(p, PlaceOf(p, tile.sequence, tile.kv_head, row).head);
  }
  state.Finish(sink, S::kScaled ? p.v_scale.At(tile.sequence.index, tile.kv_head) : 1.0f);
  WriteRows<S>(p, tile, first_row, state, warp_rows, aligned);
}

template <class S>
inline const cuda::Kernel kKernel("PrefillKernel", reinterpret_cast<const void*>(&PrefillKernel<S>),
                                  S::kSharedBytes);

// Whether CopyRows can count offsets in 16 bytes with 32 bits.
inline bool OffsetsFit(const Params& p) {
  constexpr int64_t kLimit = int64_t{1} << 36;
  const CacheView& c = p.cache;
  const auto size = [&](const CacheStrides& s) {
    return (c.num_pages * s.page + c.page_size * s.slot + c.num_kv_heads * s.head) * Bytes(c.dtype);
  };
  const int64_t q = p.num_tokens * p.q_token_stride + p.num_heads * p.q_head_stride;
  return q * Bytes(p.dtype) < kLimit && size(c.k_strides) < kLimit && size(c.v_strides) < kLimit;
}

template <class S>
Status LaunchShape(const Params& p, const CudaContext& context, const PrefillRows& rows) {
  const int64_t tiles = MaxTiles<S::kTileRows>(p, rows.min_packed_rows, rows.fill_padding);
  const cuda::LaunchConfig shape{{tiles * p.num_kv_heads()}, dim3(S::kThreads), S::kSharedBytes};
  return cuda::Launch(context, kKernel<S>, shape, p, rows,
                      Divisor(std::max<int64_t>(p.cache.page_size, 1)),
                      RowsAligned(p) && OffsetsFit(p));
}

}  // namespace intarsia::attention::prefill

namespace intarsia::attention {

template <DType kKeyType>
Status LaunchPrefillOf(const Params& p, const CudaContext& context, TileSize size,
                       PrefillRows rows) {
  using Dims = std::conditional_t<Bytes(kKeyType) == 2, PrefillDims16, PrefillDims>;
  return Dims::Dispatch(std::max(p.head_dim, p.cache.v_head_dim), [&]<int kD>() {
    return DispatchTiles<prefill::TileConfig, kKeyType, kD>(
        size, [&]<class S>() { return prefill::LaunchShape<S>(p, context, rows); });
  });
}

}  // namespace intarsia::attention
