// Split-KV decode of a plain call (decode_plain.cuh) whose packed rows, those of all its sequences,
// fit into one tile, on GPUs with clusters. Such a call takes little more than the latencies of
// what it waits for one after the other. So there is no second kernel that waits for results in
// memory: the CTAs of a KV head are a cluster, and combine what they have through distributed
// shared memory. Q and, of one sequence, page numbers are asked for when lengths are: where they
// lie depends on nothing that is in memory.
//
// The keys of all sequences, each padded to chunks, form a line, and the warps of a cluster take
// its chunks in turn: so they all have the same amount to do, however skewed the lengths are. A
// chunk is multiplied with all rows of the tile, but what those of other sequences make of it is
// dropped: nothing in one sequence's keys, a NaN say, shows in another one's results.
#pragma once
#include <array>
#include <atomic>

#include "src/attention/cuda/decode_combine.cuh"
#include "src/attention/cuda/sm80/decode_cluster_batch.cuh"
#include "src/attention/cuda/sm80/decode_query.cuh"
#include "src/core/cuda/cluster.cuh"
#include "src/core/cuda/launch.h"

namespace intarsia::attention::decode {

// s = -inf where a row does not see the key, or the key does not exist: bit j of `existing` is key
// j of the chunk, of which rows LaneRow(lane, r) see the first seen[r].
template <class S>
__device__ __forceinline__ void Hide(typename S::Scores& s, const int (&seen)[2],
                                     uint32_t existing) {
  const int first = cuda::LaneColumn(threadIdx.x % 32, 0);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint32_t bits = (existing & ~BitsFrom<uint32_t>(seen[r])) >> first;
#pragma unroll
    for (int n = 0; n < S::kChunkKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (!(bits >> (8 * n + i) & 1)) s[n][2 * r + i] = -INFINITY;
    }
  }
}

// Waits for Q, which is then what is multiplied; what the scores are to be multiplied by for it
// goes into `logit`.
template <class S>
__device__ __forceinline__ void AwaitQuery(const Params& p, int kv_head, char* shared, bool counts,
                                           Logit<S::kType>& logit) {
  const int lane = threadIdx.x % 32;
  cuda::CpAsyncWait<2 * S::kChunks>();
  __syncthreads();
  if constexpr (S::kFp8) {
    const int rows = static_cast<int>(p.num_tokens) * GroupSize(p);
    const int64_t offset = QueryOffset(p, {}, {.rows = rows}, kv_head, lane % kTileRows);
    // Rows of no sequence may hold anything.
    const uint32_t counting = __ballot_sync(0xffffffffu, counts);
    logit.Scale(ConvertQuery<S>(p, offset, counting, shared, true));
    __syncthreads();
  }
  if constexpr (!S::kOne)  // this warp may have no chunk of some sequences
    WarpNumbers<S>()[threadIdx.x / 32][lane % kTileRows] = -INFINITY;
  __syncwarp();
}

// This warp's results over chunks `chunk`, chunk + step, ... of the line. Returns which rows are to
// be written, a bit each.
template <class S>
__device__ __forceinline__ uint32_t AttendInTurn(const Params& p, const ClusterBatch<S>& batch,
                                                 Ring<S, ClusterKeys<S>>& ring, int kv_head,
                                                 char* shared, int chunk, int step,
                                                 bool fill_padding, RowState<S>& state) {
  using Rows = typename S::Rows;
  const int lane = threadIdx.x % 32;
  Logit<S::kType> logit(p, S::kScaled ? ScoreScale(p, 0, kv_head) : p.scale);
  const uint32_t q = cuda::SharedAddress(shared) + cuda::LaneOffsetA<typename S::QueryRows>(lane);
  int asked = chunk, row_seen[2] = {};
  uint32_t written = 0;
  chunk -= S::kChunks * step;
#pragma unroll 1
  for (int round = -S::kChunks; round <= 0 || chunk < batch.line(); ++round) {
    typename S::Scores s;
    uint32_t existing = 0;
    if (round == 0) {
      const auto row = batch.OwnRow(fill_padding);
      written = __ballot_sync(0xffffffffu, row.written);
#pragma unroll
      for (int r = 0; r < 2; ++r)
        row_seen[r] = __shfl_sync(0xffffffffu, row.seen, cuda::LaneRow(lane, r));
      AwaitQuery<S>(p, kv_head, shared, row.counts, logit);
      state.SetFactor(logit.factor());
    }
    const bool has_keys = round >= 0 && chunk < batch.line();
    if (has_keys) {
      ring.Wait();
      existing = ring.existing();
      MultiplyKeys<S>(s, q, ring.keys() + S::M::template LaneOffsetKeys<Rows>(lane));
      __syncwarp();  // all lanes have read them
    }
    const bool asks = asked < batch.line();
    ring.AskForKeys(asks);
    if (has_keys) {
      if (!logit.folds()) {
#pragma unroll
        for (auto& block : s) logit.Apply(block);
      }
      const auto at = batch.At(chunk);
      Hide<S>(s, {row_seen[0] - at.key, row_seen[1] - at.key}, existing);
      state.Include(s);
      ring.Wait();
      MultiplyValues<S>(state.o, s,
                        ring.values() + S::M::template LaneOffsetTransposed<Rows>(lane));
      __syncwarp();
      if constexpr (!S::kOne) {
        if (batch.At(chunk + step).sequence != at.sequence) {
          state.Finish(1.0f);
          StoreRows<S>(state, batch.RowsOf(at.sequence),
                       reinterpret_cast<float*>(shared + S::kResultsAt), WarpNumbers<S>());
          state = RowState<S>();
          state.SetFactor(logit.factor());
        }
      }
    }
    ring.AskForValues(asks);
    chunk += step;
    asked += step;
  }
  cuda::CpAsyncWait<0>();
  if constexpr (S::kOne) {
    state.Finish(S::kScaled ? p.v_scale.At(0, kv_head) : 1.0f);
    __syncthreads();  // nobody reads Q or the ring any more
    StoreRows<S>(state, {0, static_cast<int>(p.num_tokens) * GroupSize(p)},
                 reinterpret_cast<float*>(shared), WarpNumbers<S>());
  }
  return written;
}

// A vector of four columns of the tile, by its number.
template <class S>
struct RowVector {
  static constexpr int kOfRow = S::kD / 4;
  __device__ explicit RowVector(int i) : row(i / kOfRow), column(i % kOfRow * 4) {}
  // Where it lies in the results of a warp.
  __device__ float4* In(float* results, int warp) const {
    return reinterpret_cast<float4*>(results + (warp * kTileRows + row) * S::kPitch + column);
  }
  int row, column;
};

// A sum of results, each of the weight that it has beside `reference`.
struct WeightedSum {
  __device__ __forceinline__ void Add(const float4& part, float weight) {
    weights += weight;
    o[0] += weight * part.x, o[1] += weight * part.y;
    o[2] += weight * part.z, o[3] += weight * part.w;
  }
  float weights = 0.0f, o[4] = {};
};

// Makes one of the results of the CTA's warps, which are where StoreRows put them, in the place of
// the first one.
template <class S>
__device__ __forceinline__ void CombineWarps(int rows, float* results,
                                             const float (&warp_lse)[S::kWarps][kTileRows],
                                             float (&lse)[kTileRows]) {
  for (int i = threadIdx.x; i < rows * RowVector<S>::kOfRow; i += S::kThreads) {
    const RowVector<S> vector(i);
    float reference = -INFINITY;
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) reference = fmaxf(reference, warp_lse[w][vector.row]);
    WeightedSum sum;
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) {
      const float weight = Weight(warp_lse[w][vector.row], reference);
      float4 part = *vector.In(results, w);
      if (!S::kOne && weight == 0.0f) part = {};  // there may be no result
      sum.Add(part, weight);
    }
    const float inverse = Inverse(sum.weights);
    *vector.In(results, 0) = {sum.o[0] * inverse, sum.o[1] * inverse, sum.o[2] * inverse,
                              sum.o[3] * inverse};
    if (vector.column == 0) lse[vector.row] = LseOf(sum.weights, reference);
  }
}

// Combines the results of the cluster's CTAs, each of which writes a part of the output. All lanes
// of a warp read from the same CTA at a time: from several, each load would take several times as
// long.
template <class S>
__device__ __forceinline__ void CombineCtas(const Params& p, int kv_head, int rows,
                                            uint32_t written, float* results,
                                            const float (&lse)[kTileRows]) {
  static_assert(RowVector<S>::kOfRow % kClusterCtas == 0);
  const int share = rows * (RowVector<S>::kOfRow / kClusterCtas);
  const int dv = static_cast<int>(p.cache.v_head_dim);
  for (int i = threadIdx.x; i < share; i += S::kThreads) {
    const RowVector<S> vector(cuda::ClusterRank() * share + i);
    float part_lse[kClusterCtas], reference = -INFINITY;
    float4 part[kClusterCtas];
#pragma unroll
    for (int cta = 0; cta < kClusterCtas; ++cta) {
      part_lse[cta] = cuda::LoadFromBlock(&lse[vector.row], cta);
      part[cta] = cuda::LoadFromBlock(vector.In(results, 0), cta);
    }
#pragma unroll
    for (const float x : part_lse) reference = fmaxf(reference, x);
    WeightedSum sum;
#pragma unroll
    for (int cta = 0; cta < kClusterCtas; ++cta)
      sum.Add(part[cta], Weight(part_lse[cta], reference));
    if (vector.column >= dv || !(written >> vector.row & 1)) continue;
    const RowPlace to = PlaceOf(p, {}, kv_head, vector.row);
    StoreColumns(p.out, p.out_dtype, (to.token * p.num_heads + to.head) * dv + vector.column, sum.o,
                 Inverse(sum.weights), true);
  }
}

// Grid (hk, kClusterCtas), clusters of (1, kClusterCtas). `max_packed_rows`: of a sequence.
template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    ClusterDecodeKernel(const __grid_constant__ Params call,
                        const __grid_constant__ Divisor page_size, int max_packed_rows,
                        bool fill_padding) {
  if constexpr (cuda::HasClusters()) {
    extern __shared__ __align__(128) char shared[];
    __shared__ float lse[kTileRows];
    // No LetNextBegin: CTAs of a product that follows would crowd the multiprocessors that this
    // kernel leaves free, and products in int8 take longer (docs/notebook/decode.md, "Chains").
    cuda::AwaitPrevious();
    const CallOf<S> seen(call);
    const Params& p = seen.params();
    const int kv_head = blockIdx.x, warp = threadIdx.x / 32;
    // CTA by CTA: with few keys all have as many.
    const int chunk = warp * kClusterCtas + cuda::ClusterRank(), step = S::kWarps * kClusterCtas;
    const int rows = static_cast<int>(p.num_tokens) * GroupSize(p);
    const uint32_t query = cuda::SharedAddress(shared);

    ClusterBatch<S> batch(p);
    if constexpr (!S::kOne) batch.Compute(max_packed_rows);
    ClusterKeys<S> keys(p, page_size, batch);
    Ring<S, ClusterKeys<S>> ring(p, keys, kv_head, chunk * S::kChunkKeys, step * S::kChunkKeys,
                                 true, query + S::kQueryBytes + warp * S::kRingBytes);
    StartQuery<S>(p, {}, {.rows = rows}, kv_head, query, true);
    cuda::CpAsyncCommit();
    if constexpr (S::kOne) {
      batch.Compute(max_packed_rows);
      keys.EndAt(batch.keys());
    }
    RowState<S> state;
    const uint32_t written =
        AttendInTurn<S>(p, batch, ring, kv_head, shared, chunk, step, fill_padding, state);
    float* const results = reinterpret_cast<float*>(shared + S::kResultsAt);
    __syncthreads();
    CombineWarps<S>(rows, results, WarpNumbers<S>(), lse);
    cuda::ClusterSync();
    CombineCtas<S>(p, kv_head, rows, written, results, lse);
    cuda::ClusterSyncReads();  // nobody reads this CTA's memory any more
  }
}

template <class S>
inline const cuda::Kernel kClusterKernel("ClusterDecodeKernel",
                                         reinterpret_cast<const void*>(&ClusterDecodeKernel<S>),
                                         S::kSharedBytes);

template <class S>
cuda::LaunchConfig ClusterLaunch(const Params& p) {
  cuda::LaunchConfig config{{p.num_kv_heads(), kClusterCtas}, dim3(S::kThreads), S::kSharedBytes};
  config.cluster.y = kClusterCtas;
  config.overlaps_previous = true;
  return config;
}

// How many heads may have a cluster of their own, all resident at once. The driver is asked once.
template <class S>
int ClusterHeads(const Params& p, const CudaContext& context) {
  static std::array<std::atomic<int>, cuda::kMaxDevices> known;  // plus one
  std::atomic<int>& plus_one = known[static_cast<size_t>(context.device->index)];
  if (plus_one.load(std::memory_order_relaxed) == 0)
    plus_one.store(cuda::ResidentClusters(context, kClusterKernel<S>, ClusterLaunch<S>(p)) + 1,
                   std::memory_order_relaxed);
  return plus_one.load(std::memory_order_relaxed) - 1;
}

// Whether the kernel takes a plain call, and is the faster one: with heads enough for half of the
// multiprocessors, or with few keys. The bounds were measured (docs/notebook/decode.md, "One
// kernel for few rows").
template <class S>
bool FitsCluster(const Params& p, const CudaContext& context) {
  const int64_t heads = p.num_kv_heads();
  if (heads == 0 || p.num_tokens * (p.num_heads / heads) > kTileRows) return false;
  if (S::kOne ? p.num_seqs != 1 : p.num_seqs < 2 || p.num_seqs > kMaxClusterSeqs) return false;
  constexpr int64_t kEnoughHeads = 8, kHeadKeys = 2048, kFp8Keys = 32768;
  constexpr int64_t kCounted = kMaxCount - kMaxClusterSeqs * S::kChunkKeys;  // with each padded
  const int64_t most_keys = heads < kEnoughHeads ? kHeadKeys * heads
                            : S::kFp8            ? kFp8Keys
                                                 : kCounted;
  if (p.num_seqs * p.max_len_k > most_keys) return false;
  return heads <= ClusterHeads<S>(p, context);
}

template <class S>
Status LaunchCluster(Params p, const CudaContext& context, const DecodeRows& which) {
  p.SetGroup();
  return cuda::Launch(context, kClusterKernel<S>, ClusterLaunch<S>(p), p,
                      Divisor(std::max<int64_t>(p.cache.page_size, 1)),
                      static_cast<int>(std::min(which.max_packed_rows, kMaxCount)),
                      which.fill_padding);
}

}  // namespace intarsia::attention::decode
