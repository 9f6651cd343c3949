// Sorts the pairs of fused_experts by expert.
//
// A counting sort, the same every time: no count depends on the order of threads. CTAs share the
// pairs, and so do the warps of a CTA, of which v counts each expert's in counts[v, :]. How many
// the CTAs before and behind have of an expert each CTA counts itself, so that none waits for
// another. What the CTAs and warps before have of an expert, and what all have of those before it,
// is where its own begin.
#pragma once
#include "src/core/cuda/launch.h"
#include "src/core/divisor.h"
#include "src/core/round.h"
#include "src/ops/fused_experts/pass.h"

namespace intarsia::cuda {
namespace {

constexpr int kMostSortWarps = 32, kMostSortCtas = 64;
constexpr int kSortBytes = 48 << 10;  // of shared memory, which every GPU has

// Inclusive.
__device__ __forceinline__ int SumUpTo(int x) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, x, offset);
    if (static_cast<int>(threadIdx.x % 32) >= offset) x += other;
  }
  return x;
}

// Pairs of a warp, 32 apart for each lane: their experts, or -1, and their places among the warp's
// pairs of the same expert.
constexpr int kSortBatch = 8;
struct SortBatch {
  static constexpr int kPairs = 32 * kSortBatch;
  int expert[kSortBatch], place[kSortBatch];

  __device__ __forceinline__ void LoadExperts(const ExpertsPass& pass, int first, int end) {
    ForEach(first, end,
            [&](int p, int i) { expert[i] = p < end ? static_cast<int>(pass.ExpertOf(p)) : -1; });
  }
  // counts[e]: the warp's pairs of expert e so far.
  __device__ __forceinline__ void Count(int first, int end, int* counts) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    ForEach(first, end, [&](int, int i) {
      const int e = expert[i];
      const unsigned alike = __match_any_sync(0xffffffffu, e);
      const int before = e >= 0 ? counts[e] : 0;
      __syncwarp();
      if (e >= 0 && lane == __ffs(static_cast<int>(alike)) - 1) counts[e] = before + __popc(alike);
      place[i] = before + __popc(alike & ((1u << lane) - 1));
      __syncwarp();
    });
  }
  // fn(pair, i) for the lane's pairs from `first` on, some of which may lie behind `end`.
  template <class Fn>
  static __device__ __forceinline__ void ForEach(int first, int end, Fn fn) {
#pragma unroll
    for (int i = 0; i < kSortBatch; ++i)
      if (first + 32 * i < end) fn(first + 32 * i + static_cast<int>(threadIdx.x % 32), i);
  }
};

// counts[e] += the pairs first ... end - 1 of expert e; all threads together.
__device__ __forceinline__ void CountPairs(const ExpertsPass& pass, int first, int end,
                                           int* counts) {
  constexpr int kAtOnce = 8;  // ids that a thread asks for
  const int threads = static_cast<int>(blockDim.x);
  for (int p = first + static_cast<int>(threadIdx.x); p < end; p += kAtOnce * threads) {
    int expert[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      expert[i] = p + i * threads < end ? static_cast<int>(pass.ExpertOf(p + i * threads)) : -1;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (expert[i] >= 0) atomicAdd(counts + expert[i], 1);
  }
}

// Shared memory: [warps, experts], and with more than one CTA [experts] for the CTAs before and
// [experts] for all others.
__global__ void __launch_bounds__(1024)
    SortPairsKernel(const __grid_constant__ ExpertsPass pass, Divisor k, int warps) {
  AwaitPrevious();
  LetNextBegin();
  extern __shared__ int counts[];
  __shared__ int of_warps[32], carry;
  const int experts = static_cast<int>(pass.experts), threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const bool is_alone = gridDim.x == 1;
  int* const of_ctas_before = counts + warps * experts;
  int* const of_ctas_behind = of_ctas_before + experts;
  for (int i = thread; i < (is_alone ? warps : warps + 2) * experts; i += threads) counts[i] = 0;
  if (thread == 0) carry = 0;
  __syncthreads();
  const int pairs = static_cast<int>(pass.pairs());
  const int each = RoundUp(CeilDiv(pairs, warps * static_cast<int>(gridDim.x)), 32);
  const int of_cta = min(static_cast<int>(blockIdx.x) * warps * each, pairs);
  const int begin = min(of_cta + warp * each, pairs);
  const int end = warp < warps ? min(begin + each, pairs) : begin;
  const bool in_registers = each <= SortBatch::kPairs;  // all pairs of the warp
  if (!is_alone) {
    CountPairs(pass, 0, of_cta, of_ctas_before);
    CountPairs(pass, min(of_cta + warps * each, pairs), pairs, of_ctas_behind);
  }
  SortBatch batch;
  for (int at = begin; at < end; at += SortBatch::kPairs) {
    batch.LoadExperts(pass, at, end);
    batch.Count(at, end, counts + warp * experts);
    if (!in_registers)
      batch.ForEach(at, end, [&](int p, int i) {
        if (p < end) pass.places[p] = batch.place[i];
      });
  }
  __syncthreads();
  for (int first = 0; first < experts; first += threads) {
    const int e = first + thread;
    int size = 0;
    if (e < experts) {
#pragma unroll 8
      for (int v = 0; v < warps; ++v) size += counts[v * experts + e];
      if (!is_alone) size += of_ctas_before[e] + of_ctas_behind[e];
      if (blockIdx.x == 0) pass.sizes[e] = size;
    }
    const int up_to = SumUpTo(size);
    if (lane == 31) of_warps[warp] = up_to;
    __syncthreads();
    int row = carry + up_to - size;
    for (int v = 0; v < warp; ++v) row += of_warps[v];
    __syncthreads();
    if (thread == threads - 1) carry = row + size;
    if (e < experts) {
      if (!is_alone) row += of_ctas_before[e];
#pragma unroll 8
      for (int v = 0; v < warps; ++v) {
        const int count = counts[v * experts + e];
        counts[v * experts + e] = row;
        row += count;
      }
    }
    __syncthreads();
  }
  for (int at = begin; at < end; at += SortBatch::kPairs) {
    if (!in_registers) {
      batch.LoadExperts(pass, at, end);
      batch.ForEach(at, end, [&](int p, int i) { batch.place[i] = p < end ? pass.places[p] : 0; });
    }
    batch.ForEach(at, end, [&](int p, int i) {
      if (p >= end) return;
      const int e = batch.expert[i];
      const int row = e < 0 ? -1 : counts[warp * experts + e] + batch.place[i];
      pass.places[p] = row;
      if (row >= 0) pass.rows[row] = static_cast<int>(k.Divide(p));
    });
  }
}
const Kernel kSortPairsKernel("SortPairsKernel", reinterpret_cast<const void*>(&SortPairsKernel),
                              kSortBytes);

Status SortOnDevice(const CudaContext& context, const ExpertsPass& pass) {
  constexpr int64_t kMostExperts = kSortBytes / static_cast<int64_t>(sizeof(int));
  if (pass.experts > kMostExperts)
    return Unimplemented(
        Text("w1 has e=", pass.experts, " experts, built for GPUs are up to ", kMostExperts));
  // A warp has 32 pairs, as far as there are CTAs; with many experts one CTA has all, since the
  // counts of few warps fill its shared memory.
  const int64_t rows = kMostExperts / std::max<int64_t>(pass.experts, 1);  // of counts
  const bool shares = rows >= 8 + 2;
  const int64_t most = std::min<int64_t>(kMostSortWarps, shares ? rows - 2 : rows);
  const int64_t warps = std::clamp<int64_t>(CeilDiv<int64_t>(pass.pairs(), 32), 1, most);
  const int64_t ctas =
      shares ? std::clamp<int64_t>(CeilDiv<int64_t>(pass.pairs(), 32 * warps), 1, kMostSortCtas)
             : 1;
  const int64_t threads = std::max<int64_t>(
      int64_t{32} * warps, std::min<int64_t>(RoundUp<int64_t>(pass.experts, 32), 1024));
  const int64_t counts = (ctas > 1 ? warps + 2 : warps) * pass.experts;
  const LaunchConfig config{
      .grid = {ctas},
      .block = dim3(static_cast<unsigned>(threads)),
      .shared_bytes = static_cast<int>(sizeof(int) * static_cast<size_t>(counts)),
      .overlaps_previous = true};
  return Launch(context, kSortPairsKernel, config, pass, Divisor(std::max<int64_t>(pass.k, 1)),
                static_cast<int>(warps));
}

}  // namespace
}  // namespace intarsia::cuda
