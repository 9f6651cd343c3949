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
  lse = l == 0.0f ? -INFINITY : (top + cuda::Log2(l)) * kLn2;
  return l == 0.0f ? 0.0f : __fdividef(kept, l);
}

inline constexpr int kWarpRows = 16;

// A warp's rows of results in shared memory, where the same rows of Q are or would be: no other
// warp reads or writes there.
template <class S>
struct StagedRows {
  static constexpr int kUnits = S::kDv / 8;
  static __device__ uint32_t Offset(int row, int unit) {
    return cuda::PanelOffset(S::kTileRows, row, unit * 8);
  }
};

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

// Writes the rows of a warpgroup. `staged` has room for those of all, as panels. The copy engine
// may read it until AwaitStoreReads().
template <class S, class T>
__device__ __forceinline__ void WriteRows(const Params& p, const Maps& maps, const LaunchPlan& plan,
                                          const Task& task, const float (&o)[S::kDv / 2],
                                          const float (&lse)[2], char* staged) {
  using Staged = StagedRows<S>;
  const int thread = Anew(static_cast<int>(threadIdx.x) - cuda::kWarpgroupThreads);
  const int lane = thread % 32, warp = thread / 32;
  char* const rows = staged + warp * kWarpRows * cuda::kPanelRowBytes;
  // Of the lane's first matrix. The others' units differ in bits that this one's row does not have,
  // so that the swizzle is an XOR with them.
  const uint32_t at = cuda::SharedAddress(rows) + Staged::Offset(lane % 16, lane / 16);
  cuda::AwaitStoreReads();  // of the last task's rows
  __syncwarp();
#pragma unroll
  for (int unit = 0; unit < S::kDv / 8; unit += 2) {
    uint32_t pairs[4];
    ToOperand<T>(reinterpret_cast<const float(&)[8]>(o[unit * 4]), pairs);
    cuda::StMatrix4((at ^ unit % 8 * 16) + unit / 8 * S::kTileRows * cuda::kPanelRowBytes, pairs);
  }
  // Lane i finds row i, lanes 0 ... 15; in the tile, and among the sequence's packed rows.
  const int row = warp * kWarpRows + lane % kWarpRows, packed = task.first_token * p.group + row;
  const bool exists =
      row < plan.tokens_per_tile * p.group && packed < task.sequence.tokens.size() * p.group;
  const int first_token = task.first_token + warp * plan.warp_tokens;
  if (plan.warp_tokens > 0 && first_token + plan.warp_tokens <= task.sequence.tokens.size()) {
    cuda::FenceForAsyncReads();
    __syncwarp();
    if (lane == 0) {
      for (int panel = 0; panel < S::kOutPanels; ++panel) {
        const int32_t to[] = {panel * S::kOutPanelColumns, task.kv_head * p.group,
                              task.sequence.tokens.begin + first_token};
        cuda::StoreBox(maps.out, to, rows + panel * S::kTileRows * cuda::kPanelRowBytes);
      }
      cuda::CommitStores();
    }
  } else {
    __syncwarp();
    const RowPlace place = PlaceOf(p, task.sequence, task.kv_head, packed);
    const int dv = static_cast<int>(p.cache.v_head_dim);
    const int64_t to = exists ? (place.token * p.num_heads + place.head) * dv : -1;
    cuda::StoreRows<Staged, kWarpRows>(static_cast<T*>(p.out), rows, to, dv, true);
  }
  if (p.lse) {
    // Lane 4 i has the rows i and i + 8.
    const float value = __shfl_sync(0xffffffffu, lse[0], lane % 8 * 4);
    const float other = __shfl_sync(0xffffffffu, lse[1], lane % 8 * 4);
    const RowPlace place = PlaceOf(p, task.sequence, task.kv_head, packed);
    if (lane < kWarpRows && exists)
      p.lse[place.head * p.num_tokens + place.token] = lane < 8 ? value : other;
  }
  __syncwarp();  // the next task's rows go to the same place
}

}  // namespace intarsia::attention::sm90
