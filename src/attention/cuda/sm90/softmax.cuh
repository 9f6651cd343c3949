// The online softmax of a consumer: each thread has parts of two rows, r = 0 and 1, eight apart.
#pragma once
#include "src/attention/cuda/fragments.cuh"
#include "src/attention/cuda/sm90/shared.cuh"
#include "src/core/cuda/ptx.cuh"
#include "src/core/cuda/wgmma.cuh"

namespace intarsia::attention::sm90 {

// What a thread's two rows have seen.
//
// m need not be the maximum: any number near it gives the same quotient o / l. So it stays where it
// is until some x exceeds it by kSlack, which happens a few times, early on; most tiles need no
// reduction over lanes and no rescaling of o (FlashAttention-4, 2025). l sums the thread's own
// columns until the end.
struct Rows {
  static constexpr float kSlack = 8.0f;  // weights are at most 2^kSlack

  float m[2] = {-INFINITY, -INFINITY};
  float l[2] = {0.0f, 0.0f};
};

// Where a thread's rows are in their tile, and which columns of a tile of keys it has. Computed
// anew where it is needed: the loop over keys has no registers for it. So the thread's number
// passes through a volatile asm, beyond which the compiler cannot move what follows.
struct ThreadPlace {
  int row, column;  // the first of each

  __device__ __forceinline__ ThreadPlace() {
    int thread = static_cast<int>(threadIdx.x);
    asm volatile("" : "+r"(thread));
    row = thread / cuda::kWarpgroupThreads * cuda::kWgmmaRows - cuda::kWgmmaRows +
          cuda::AccumulatorRow(thread % cuda::kWarpgroupThreads, 0);
    column = cuda::AccumulatorColumn(thread, 0);
  }
};
struct TileRow {
  int token, head;  // of the sequence, of the group; tokens behind the last one count as it
};
__device__ __forceinline__ TileRow RowOf(const LaunchPlan& plan, const Task& task, int row) {
  const int token = row / plan.group;
  return {min(task.first_token + token, task.sequence.tokens.size() - 1),
          task.kv_head * plan.group + row - token * plan.group};
}

// Scores where a row does not see the key, or the key does not exist, become -inf. `boxes`: which
// boxes of the tile exist.
template <int kScores>
__device__ __forceinline__ void MaskScores(float (&s)[kScores], const Params& p,
                                           const LaunchPlan& plan, const Task& task, int first_key,
                                           uint32_t boxes) {
  const ThreadPlace place;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const TileRow row = RowOf(plan, task, place.row + 8 * r);
    const Range keys = VisibleKeys(p, task.sequence, row.token);
    const int first = first_key + place.column;
    const int begin = keys.begin - first, end = keys.end - first;
#pragma unroll
    for (int i = 2 * r; i < kScores; i += 4) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int at = i / 4 * 8 + e;
        if (at < begin || at >= end) s[i + e] = -INFINITY;
      }
    }
  }
  if (boxes == ~0u) return;
#pragma unroll
  for (int i = 0; i < kScores; ++i)
    if (!(boxes >> ((i / 4 * 8 + i % 2 + place.column) >> plan.box_shift) & 1)) s[i] = -INFINITY;
}

template <int kScores>
__device__ __forceinline__ void SubtractAlibi(float (&s)[kScores], const Params& p,
                                              const LaunchPlan& plan, const Task& task,
                                              int first_key) {
  const ThreadPlace place;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const TileRow row = RowOf(plan, task, place.row + 8 * r);
    const float slope = p.alibi_slopes.At(task.sequence.index, row.head) * kLog2e;
    const int distance =
        static_cast<int>(PositionOf(task.sequence, row.token)) - first_key - place.column;
#pragma unroll
    for (int i = 2 * r; i < kScores; i += 4) {
#pragma unroll
      for (int e = 0; e < 2; ++e)
        s[i + e] -= slope * static_cast<float>(abs(distance - i / 4 * 8 - e));
    }
  }
}

// Moves m if the scores ask for it; l follows, and o has to be multiplied by `kept` when the result
// is true, in all lanes of the warp. `factor` > 0 takes scores to x.
template <int kScores>
__device__ __forceinline__ bool FollowMaximum(const float (&s)[kScores], float factor, Rows& rows,
                                              float (&kept)[2]) {
  float top[2];
  bool exceeds = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float x = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
    for (int i = 4 + 2 * r; i < kScores; i += 4) x = fmaxf(x, fmaxf(s[i], s[i + 1]));
    top[r] = x * factor;
    exceeds |= top[r] > rows.m[r] + Rows::kSlack;
  }
  if (!__any_sync(0xffffffffu, exceeds)) return false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float m = RowMaximum(fmaxf(top[r], rows.m[r]));
    kept[r] = cuda::Exp2(rows.m[r] - BaseOf(m));
    rows.m[r] = m;
    rows.l[r] *= kept[r];
  }
  return true;
}

// s becomes 2^(x - m).
template <int kScores>
__device__ __forceinline__ void TakeWeights(float (&s)[kScores], float factor, Rows& rows) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float base = BaseOf(rows.m[r]);
#pragma unroll
    for (int i = 2 * r; i < kScores; i += 4) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        s[i + e] = cuda::Exp2(fmaf(s[i + e], factor, -base));
        rows.l[r] += s[i + e];
      }
    }
  }
}

// Neighbors rounded to a pair of T: the registers of operand A.
template <class T, int kScores>
__device__ __forceinline__ void ToOperand(const float (&s)[kScores],
                                          uint32_t (&weights)[kScores / 2]) {
#pragma unroll
  for (int i = 0; i < kScores / 2; ++i) {
    const cuda::PairOf<T> pair = [&] {
      if constexpr (std::is_same_v<T, __half>)
        return __floats2half2_rn(s[2 * i], s[2 * i + 1]);
      else
        return __floats2bfloat162_rn(s[2 * i], s[2 * i + 1]);
    }();
    memcpy(&weights[i], &pair, sizeof pair);
  }
}

template <int kOut>
__device__ __forceinline__ void ScaleRows(float (&o)[kOut], const float (&by)[2]) {
#pragma unroll
  for (int i = 0; i < kOut; ++i) o[i] *= by[i / 2 % 2];
}

}  // namespace intarsia::attention::sm90
