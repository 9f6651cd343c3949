// From sums to results: the end of the softmax, and the rows of out and lse.
#pragma once
#include "src/attention/cuda/sm90/shared.cuh"
#include "src/attention/cuda/sm90/softmax.cuh"
#include "src/core/cuda/copy.cuh"
#include "src/core/cuda/ptx.cuh"

namespace intarsia::attention::sm90 {

// Ends the sums of a row: returns what its o is to be multiplied by.
__device__ __forceinline__ float FinishRow(float base, float l, float sink, float& lse) {
  const float top = fmaxf(base, sink), kept = cuda::Exp2(base - top);
  l = RowSum(l) * kept + cuda::Exp2(sink - top);
  lse = l == 0.0f ? -INFINITY : top * kLn2 + logf(l);
  return l == 0.0f ? 0.0f : kept / l;
}

// A warp's 16 rows of results in shared memory, where the same rows of Q are or would be: no other
// warp reads or writes there.
template <class S>
struct StagedRows {
  static constexpr int kCount = 16, kUnits = S::kDv / 8;
  static __device__ uint32_t Offset(int row, int unit) {
    return cuda::PanelOffset(S::kTileRows, row, unit * 8);
  }
};

// Leaves the rows of a warpgroup, of which the first one is `first_row`, as a partial result.
template <class S>
__device__ __forceinline__ void LeavePiece(const LaunchPlan& plan, const Task& task, int first_row,
                                           const float (&o)[S::kDv / 2], const float (&lse)[2]) {
  float* const piece = plan.pieces.At(static_cast<int>(blockIdx.x), task.piece_place);
  int thread = static_cast<int>(threadIdx.x) % cuda::kWarpgroupThreads;
  asm volatile("" : "+r"(thread));  // as in ThreadPlace
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

// Writes the rows of a warpgroup. `staged` has room for those of all, as panels.
template <class S, class T>
__device__ __forceinline__ void WriteRows(const Params& p, const LaunchPlan& plan, const Task& task,
                                          const float (&o)[S::kDv / 2], const float (&lse)[2],
                                          char* staged) {
  using Staged = StagedRows<S>;
  int thread = static_cast<int>(threadIdx.x) - cuda::kWarpgroupThreads;
  asm volatile("" : "+r"(thread));  // as in ThreadPlace
  const int lane = thread % 32, warp = thread / 32;
  const int dv = static_cast<int>(p.cache.v_head_dim);
  // Lane i finds row i, lanes 0 ... 15.
  const int row = warp * Staged::kCount + lane % Staged::kCount, token = row / plan.group;
  const bool exists =
      token < plan.tokens_per_tile && task.first_token + token < task.sequence.tokens.size();
  const int64_t out_token = task.sequence.tokens.begin + task.first_token + token;
  const int64_t out_head = task.kv_head * plan.group + row - token * plan.group;
  char* const rows = staged + warp * Staged::kCount * cuda::kPanelRowBytes;
  const uint32_t at = cuda::SharedAddress(rows);
#pragma unroll
  for (int unit = 0; unit < S::kDv / 8; unit += 2) {
    uint32_t pairs[4];
    ToOperand<T>(reinterpret_cast<const float(&)[8]>(o[unit * 4]), pairs);
    cuda::StMatrix4(at + Staged::Offset(lane % 16, unit + lane / 16), pairs);
  }
  __syncwarp();
  cuda::StoreRows<Staged, Staged::kCount>(static_cast<T*>(p.out), rows,
                                          exists ? (out_token * p.num_heads + out_head) * dv : -1,
                                          dv, true);
  if (p.lse) {
    // Lane 4 i has the rows i and i + 8.
    const float value = __shfl_sync(0xffffffffu, lse[0], lane % 8 * 4);
    const float other = __shfl_sync(0xffffffffu, lse[1], lane % 8 * 4);
    if (lane < 16 && exists) p.lse[out_head * p.num_tokens + out_token] = lane < 8 ? value : other;
  }
  __syncwarp();  // the next task's rows go to the same place
}

}  // namespace intarsia::attention::sm90
