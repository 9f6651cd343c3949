// The gradient's kernel for sm_80 and newer: mma.sync fed by cp.async, after FlashAttention-2 (Dao
// 2023, arXiv:2307.08691, algorithm 2). backward.h has the mathematics.
//
// A CTA owns one tile of keys of one KV head, and walks over the tiles of packed rows that see it.
// Warps come in pairs that share 16 or 32 keys. Of these keys and all rows of the tile,
//
//   one warp   computes S' = K Q' in registers, P', and adds P' dO to its sums dV;
//   the other  computes dP' = V dO', takes P from the first, dS', and adds dS' Q to its sums dK,
//
// so neither P nor dS is read back for these two products, and each fragment of Q and dO that is
// read serves 32 keys. dS' also goes to shared memory, where all warps together compute dQ = dS K
// and add it to the workspace.
//
// Additions from different CTAs come in any order, so that their sum differs in its last bits from
// run to run. If `deterministic`, the CTAs of a sequence and head take turns at each tile of rows:
// a counter says whose turn it is. CTAs take their tiles of keys from another counter then, so
// whoever waits does it for one that runs already; and they walk from the last row on, where under
// a causal mask all of them can begin.
#pragma once
#include "src/attention/cuda/sm80/backward_launch.h"
#include "src/attention/cuda/sm80/backward_products.cuh"
#include "src/attention/cuda/sm80/backward_weights.cuh"
#include "src/core/cuda/copy.cuh"
#include "src/core/cuda/launch.h"

namespace intarsia::attention::backward {

// ---------------------------------------------------------------------------- loads

// The warp's keys of K or V.
template <class S>
__device__ __forceinline__ void LoadKeys(const Frame<S>& f) {
  using T = typename S::T;
  const CacheView& cache = f.b.forward.cache;
  const CacheStrides& strides = f.own() == 0 ? cache.k_strides : cache.v_strides;
  const T* const source = static_cast<const T*>(f.own() == 0 ? cache.k : cache.v);
  const int key = f.tile.first_key + f.pair() * S::kWarpKeys + f.lane;
  const bool exists = f.lane < S::kWarpKeys && key < f.tile.sequence.len_k;
  const int64_t slot = exists ? int64_t{f.tile.sequence.k_begin} + key : 0;
  cuda::CopyRows<typename S::Rows, S::kWarpKeys>(
      f.keys(f.own()) + f.pair() * S::kWarpKeys * S::Rows::kRowBytes, source,
      strides.At(0, 0, slot, f.tile.kv_head), __ballot_sync(0xffffffffu, exists),
      static_cast<int>(f.b.forward.head_dim), f.aligned);
}

// The warp's rows of Q or dO of a tile of rows, and its part of their RowInfo.
template <class S>
__device__ __forceinline__ void LoadRows(const Frame<S>& f, int row_tile, int number) {
  using T = typename S::T;
  const Params& p = f.b.forward;
  const Sequence& s = f.tile.sequence;
  const int first = row_tile * S::kTileRows, num_rows = f.num_rows();
  {
    const int row = first + f.pair() * S::kCopiedRows + f.lane;
    const bool exists = f.lane < S::kCopiedRows && row < num_rows;
    const RowPlace place = PlaceOf(p, s, f.tile.kv_head, exists ? row : 0);
    const int64_t offset = f.own() == 0
                               ? place.token * p.q_token_stride + place.head * p.q_head_stride
                               : (place.token * p.num_heads + place.head) * p.head_dim;
    cuda::CopyRows<typename S::Rows, S::kCopiedRows>(
        f.rows(number, f.own()) + f.pair() * S::kCopiedRows * S::Rows::kRowBytes,
        static_cast<const T*>(f.own() == 0 ? p.q : f.b.dout), offset,
        __ballot_sync(0xffffffffu, exists), static_cast<int>(p.head_dim), f.aligned);
  }
  const int row = first + static_cast<int>(threadIdx.x);
  if (threadIdx.x >= S::kTileRows) return;
  RowInfo<S>& info = f.info(number);
  int& index = f.indices(number)[threadIdx.x];
  if (row < num_rows) {
    const RowPlace place = PlaceOf(p, s, f.tile.kv_head, row);
    index = static_cast<int>(place.token * p.num_heads + place.head);
    cuda::CpAsync8(cuda::SharedAddress(&info.stats[threadIdx.x]),
                   BackwardWorkspace(f.b).stats() + index);
    info.position[threadIdx.x] =
        static_cast<int>(place.token) - s.tokens.begin + s.len_k - s.tokens.size();
    info.slope[threadIdx.x] = p.alibi_slopes.At(s.index, place.head, 0.0f) * kLog2e;
  } else {
    info.stats[threadIdx.x] = {INFINITY, 0.0f};
    index = -1;
    info.position[threadIdx.x] = 0;
    info.slope[threadIdx.x] = 0.0f;
  }
}

// ---------------------------------------------------------------------------- dQ, dK, dV

// Adds the warp's part of dQ to the workspace.
template <class S>
__device__ __forceinline__ void AddQueryGradient(const Frame<S>& f, int number) {
  const int row_warp = f.warp % S::kRowWarps,
            first_column = f.warp / S::kRowWarps * S::kQueryColumns;
  const int first_row = row_warp * 16 * S::kQueryBlocks;
  constexpr int kRowStep = 32 / static_cast<int>(sizeof(typename S::T));
  float dq[S::kQueryBlocks][S::kQueryColumns / 8][4] = {};
  MultiplyKeys<S>(
      dq,
      S::ScoreRows::AtStep(cuda::SharedAddress(f.scores(number)) + LaneOffsetTransposedA<S>(f.lane),
                           first_row / kRowStep),
      cuda::SharedAddress(f.keys(0)) +
          S::M::template LaneOffsetTransposed<typename S::Rows>(f.lane),
      first_column);
  const int d = static_cast<int>(f.b.forward.head_dim);
#pragma unroll
  for (int block = 0; block < S::kQueryBlocks; ++block) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = f.indices(number)[first_row + cuda::LaneRow(f.lane, 2 * block + r)];
      if (row < 0) continue;
      float* const to = BackwardWorkspace(f.b).dq() + int64_t{row} * d + first_column +
                        cuda::LaneColumn(f.lane, 0);
#pragma unroll
      for (int n = 0; n < S::kQueryColumns / 8; ++n) {
        if (first_column + 8 * n < d)
          cuda::AtomicAdd2(to + 8 * n, dq[block][n][2 * r], dq[block][n][2 * r + 1]);
      }
    }
  }
}

// The turns of a deterministic dQ: thread 0 waits for the CTA's turn at a tile of rows, and passes
// it on. All threads meet between that and what they add.
template <class S>
class Turns {
 public:
  __device__ explicit Turns(const Frame<S>& f) : f_(f) {
    const Params& p = f.b.forward;
    const Sequence& s = f.tile.sequence;
    const int64_t before = int64_t{s.tokens.begin} * GroupSize(p) / S::kTileRows + s.index;
    counters_ =
        BackwardWorkspace(f.b).counters() + 1 + before * p.cache.num_kv_heads + f.tile.kv_head;
  }
  __device__ void Await(int row_tile) const {
    if (!f_.b.deterministic || threadIdx.x != 0) return;
    const int turn = TurnOf<S>(f_.b.forward, f_.tile, row_tile);
    while (cuda::LoadAcquire(At(row_tile)) < turn) __nanosleep(20);
  }
  __device__ void Pass(int row_tile) const {
    if (!f_.b.deterministic || threadIdx.x != 0) return;
    __threadfence();
    atomicAdd(At(row_tile), 1);
  }

 private:
  __device__ int32_t* At(int row_tile) const {
    return counters_ + int64_t{row_tile} * f_.b.forward.cache.num_kv_heads;
  }

  const Frame<S>& f_;
  int32_t* counters_;
};

// Writes the warp's sums to dk or dv, through its rows of K or V, behind a barrier of the whole
// CTA.
template <class S>
__device__ __forceinline__ void WriteKeys(const Frame<S>& f, const typename S::Sums& sums) {
  using T = typename S::T;
  const Params& p = f.b.forward;
  const float scale = f.makes_weights() ? 1.0f : p.scale;
  char* const place = f.keys(f.own()) + f.pair() * S::kWarpKeys * S::Rows::kRowBytes;
#pragma unroll
  for (int block = 0; block < S::kKeyBlocks; ++block) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int n = 0; n < S::kD / 8; ++n) {
        const int byte = cuda::LaneColumn(f.lane, n) * static_cast<int>(sizeof(T));
        *reinterpret_cast<cuda::Vec<T, 2 * sizeof(T)>*>(
            place + S::Rows::Offset(cuda::LaneRow(f.lane, 2 * block + r), byte / 16) +
            byte % 16) = {{cuda::FromFloat<T>(sums[block][n][2 * r] * scale),
                           cuda::FromFloat<T>(sums[block][n][2 * r + 1] * scale)}};
      }
    }
  }
  __syncwarp();
  const int key = f.tile.first_key + f.pair() * S::kWarpKeys + f.lane,
            d = static_cast<int>(p.head_dim);
  const bool exists = f.lane < S::kWarpKeys && key < f.tile.sequence.len_k;
  const int64_t slot = int64_t{f.tile.sequence.k_begin} + key;
  cuda::StoreRows<typename S::Rows, S::kWarpKeys>(
      static_cast<T*>(f.makes_weights() ? f.b.dv : f.b.dk), place,
      exists ? (slot * p.cache.num_kv_heads + f.tile.kv_head) * d : -1, d, f.aligned);
}

// Everything of a tile of keys. dQ of a tile of rows waits until the next one is under way, so that
// one barrier a tile is enough, and no warp waits for its partner's weights.
template <class S>
__device__ __forceinline__ void Walk(const Frame<S>& f) {
  using Rows = typename S::Rows;
  const Params& p = f.b.forward;
  const Range tiles = RowTilesOf<S>(p, f.tile);
  const bool simple = p.softcap == 0.0f && !p.alibi_slopes.data;
  const Range whole = simple ? WholeRowTiles<S>(p, f.tile) : Range{};
  const int count = tiles.size();
  const auto tile_at = [&](int i) {
    return f.b.deterministic ? tiles.end - 1 - i : tiles.begin + i;
  };
  const Turns<S> turns(f);
  typename S::Sums sums = {};
  LoadKeys(f);
  if (count > 0) LoadRows(f, tile_at(0), 0);
  cuda::CpAsyncCommit();
  const uint32_t own_keys = cuda::SharedAddress(f.keys(f.own())) +
                            f.pair() * S::kWarpKeys * Rows::kRowBytes +
                            cuda::LaneOffsetA<Rows>(f.lane);
  for (int i = 0; i <= count; ++i) {
    if (i > 0) turns.Await(tile_at(i - 1));
    cuda::CpAsyncWait<0>();
    __syncthreads();  // rows i and dS i - 1 are here; nobody needs rows i - 1 and dS i - 2 any more
    if (i > 1) turns.Pass(tile_at(i - 2));
    if (i > 0 && !f.makes_weights()) AddQueryGradient(f, i - 1);
    if (i < count) {
      typename S::Scores s;
      Multiply<S>(s, own_keys,
                  cuda::SharedAddress(f.rows(i, f.own())) + cuda::LaneOffsetB<Rows>(f.lane));
      if (i + 1 < count) LoadRows(f, tile_at(i + 1), i + 1);
      cuda::CpAsyncCommit();
      const int tile = tile_at(i), barrier = 1 + f.pair();
      // Both wait, though the first need only arrive (bar.arrive, no faster): racecheck does not
      // follow that, and then names what the warps do behind later barriers.
      if (f.makes_weights()) {
        MakeWeights(f, s, i, tile >= whole.begin && tile < whole.end);
        cuda::BarrierSync(barrier, 64);
      } else {
        cuda::BarrierSync(barrier, 64);
        MakeGradients(f, s, i);
      }
      AddProduct<S>(sums, s,
                    cuda::SharedAddress(f.rows(i, f.own() ^ 1)) +
                        S::M::template LaneOffsetTransposed<Rows>(f.lane));
    }
    if (i > 0 && f.makes_weights()) AddQueryGradient(f, i - 1);
  }
  __syncthreads();  // nobody reads K any more
  if (count > 0) turns.Pass(tile_at(count - 1));
  WriteKeys(f, sums);
}

// Grid: tiles of keys times KV heads, the heads of one tile next to each other.
template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kTiles.ctas_per_sm)
    BackwardKernel(const __grid_constant__ BackwardParams b, bool aligned) {
  extern __shared__ __align__(128) char shared[];
  __shared__ KeyTile tile;  // not in registers, which the loop needs
  const Params& p = b.forward;
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // known to be the same in all
  bool found = false;
  if (warp == 0) {
    int index = static_cast<int>(blockIdx.x);
    if (b.deterministic) {
      if (lane == 0) index = atomicAdd(BackwardWorkspace(b).counters(), 1);
      index = __shfl_sync(0xffffffffu, index, 0);
    }
    const int num_kv_heads = static_cast<int>(p.cache.num_kv_heads);
    KeyTile tile_found;
    found = FindKeyTile<S::kTileKeys>(p, index / num_kv_heads, tile_found);
    tile_found.kv_head = index % num_kv_heads;
    if (lane == 0) tile = tile_found;
  }
  if (!__syncthreads_or(found)) return;
  Walk<S>({b, tile, shared, aligned, warp, lane});
}

template <class S>
inline const cuda::Kernel kKernel("BackwardKernel",
                                  reinterpret_cast<const void*>(&BackwardKernel<S>),
                                  kSharedBytes<S>);

template <class S>
Status LaunchShape(const BackwardParams& b, const CudaContext& context, bool aligned) {
  static_assert(kSharedBytes<S> == BackwardSharedBytes(S::kType, S::kD, S::kTiles));
  const Params& p = b.forward;
  // No lengths make more tiles: each sequence has at most one that is not full.
  const int64_t tiles = (p.max_len_k + p.num_seqs * (S::kTileKeys - 1)) / S::kTileKeys;
  return cuda::Launch(context, kKernel<S>,
                      {{tiles * p.cache.num_kv_heads}, dim3(S::kThreads), kSharedBytes<S>}, b,
                      aligned);
}

}  // namespace intarsia::attention::backward

namespace intarsia::attention {

template <DType kType>
Status LaunchBackwardOf(const BackwardParams& b, const CudaContext& context, TileSize size,
                        bool aligned) {
  return BackwardDims::Dispatch(b.forward.head_dim, [&]<int kD>() {
    return DispatchTiles<backward::TileConfig, kType, kD>(
        size, [&]<class S>() { return backward::LaunchShape<S>(b, context, aligned); });
  });
}

}  // namespace intarsia::attention
