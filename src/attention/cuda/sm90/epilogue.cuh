// From sums to results: the end of the softmax, and the rows of out and lse.
#pragma once
#include "src/attention/cuda/sm90/shared.cuh"
#include "src/attention/cuda/sm90/softmax.cuh"
#include "src/core/cuda/ptx.cuh"

namespace intarsia::attention::sm90 {

// Ends the sums of a row: returns what its o is to be multiplied by.
__device__ __forceinline__ float FinishRow(float base, float l, float sink, float& lse) {
  const float top = fmaxf(base, sink), kept = cuda::Exp2(base - top);
  l = RowSum(l) * kept + cuda::Exp2(sink - top);
  lse = l == 0.0f ? -INFINITY : (top + cuda::Log2(l)) * kLn2;
  return l == 0.0f ? 0.0f : __fdividef(kept, l);
}

inline constexpr int kWarpRows = 16;

// Leaves the rows of a warpgroup, of which the first one is `first_row`, as a partial result.
template <class S>
__device__ __forceinline__ void LeavePiece(const LaunchPlan& plan, const Task& task, int first_row,
                                           const float (&o)[S::kDv / 2], const float (&lse)[2]) {
  float* const piece = plan.pieces.At(static_cast<int>(blockIdx.x), task.piece_place);
  const int thread = Anew(static_cast<int>(threadIdx.x) % cuda::kWarpgroupThreads);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first_row + cuda::AccumulatorRow(thread, 0) + 8 * r;
    float* const to = piece + row * S::kDv + cuda::AccumulatorColumn(thread, 0);
#pragma unroll
    for (int i = 2 * r; i < S::kDv / 2; i += 4)
      *reinterpret_cast<float2*>(to + i / 4 * 8) = {o[i], o[i + 1]};
    if (thread % 4 == 0) piece[plan.pieces.room.lse_offset() + row] = lse[r];
  }
}

// Where a row of the tile is, if it exists.
struct OwnRow {
  bool exists;
  RowPlace place;

  __device__ __forceinline__ OwnRow(const Params& p, const LaunchPlan& plan, const Task& task,
                                    int row) {
    const int packed = task.first_token * p.group + row;
    exists = row < plan.tokens_per_tile * p.group && packed < task.sequence.tokens.size() * p.group;
    place = PlaceOf(p, task.sequence, task.kv_head, packed);
  }
};

// Lane 4 i has the numbers of rows i and i + 8 of a warp, of which the first one is `first`.
__device__ __forceinline__ void StoreLse(const Params& p, const LaunchPlan& plan, const Task& task,
                                         int first, const float (&lse)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float value = __shfl_sync(0xffffffffu, lse[0], lane % 8 * 4);
  const float other = __shfl_sync(0xffffffffu, lse[1], lane % 8 * 4);
  const OwnRow row(p, plan, task, first + lane);
  if (lane < kWarpRows && row.exists)
    p.lse[row.place.head * p.num_tokens + row.place.token] = lane < 8 ? value : other;
}

// Stores the rows of a warpgroup from registers: through shared memory it takes longer. Two lanes
// exchange halves of two neighboring units of a row: an even lane has four columns of the first
// one then, an odd lane of the second. Each stores 8 bytes, and four lanes a sector of 32.
template <class S, class T>
__device__ __forceinline__ void StoreRows(const Params& p, const LaunchPlan& plan, const Task& task,
                                          const float (&o)[S::kDv / 2], const float (&lse)[2]) {
  const int thread = Anew(static_cast<int>(threadIdx.x) - cuda::kWarpgroupThreads);
  const int lane = thread % 32, first = thread / 32 * kWarpRows, odd = lane % 2;
  const int dv = static_cast<int>(p.cache.v_head_dim);
  if (p.lse) StoreLse(p, plan, task, first, lse);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const OwnRow row(p, plan, task, first + lane / 4 + 8 * r);
    T* const to = static_cast<T*>(p.out) + (row.place.token * p.num_heads + row.place.head) * dv +
                  odd * 8 + lane % 4 / 2 * 4;
#pragma unroll
    for (int unit = 0; unit < S::kDv / 8; unit += 2) {
      const auto pair_of = [&](int i) {
        uint32_t pair[1];
        ToOperand<T>(reinterpret_cast<const float(&)[2]>(o[i * 4 + 2 * r]), pair);
        return pair[0];
      };
      const uint32_t left = pair_of(unit), right = pair_of(unit + 1);
      const uint32_t kept = odd ? right : left;
      const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? left : right, 1);
      if (row.exists && (unit + odd) * 8 < dv)
        *reinterpret_cast<uint2*>(to + unit * 8) = odd ? uint2{got, kept} : uint2{kept, got};
    }
  }
}

}  // namespace intarsia::attention::sm90
