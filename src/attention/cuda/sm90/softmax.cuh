// The online softmax of a consumer: each thread has parts of two rows, r = 0 and 1, eight apart.
#pragma once
#include <cuda_fp8.h>

#include <bit>

#include "src/attention/cuda/fragments.cuh"
#include "src/attention/cuda/sm90/shared.cuh"
#include "src/core/cuda/ptx.cuh"
#include "src/core/cuda/wgmma.cuh"

namespace intarsia::attention::sm90 {

// A warp is done with Q, which it may read again without the others (MultiplyKeysAlone), or with K
// and what is known of its boxes.
__device__ __forceinline__ void ReleaseByWarp(cuda::Barrier& empty) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) empty.Arrive();
}

template <class T>
inline constexpr bool kIsE4M3 = std::is_same_v<T, __nv_fp8_e4m3>;

// What a thread's two rows have seen.
//
// Any base b gives the same quotient o / l, if the weights 2^(x - b) are not too large. So b is
// some kSlack above the largest x of the tile that it was taken from, and stays until weights
// exceed kMostWeight: most tiles look at the sums of their weights alone, and need no maximum, no
// reduction over lanes and no rescaling of o (FlashAttention-4, 2025, keeps its maximum likewise).
// l sums the thread's own columns until the end.
struct Rows {
  // Of a new base, in powers of two: room for larger x. In f16 weights must not be far below 1,
  // where small ones would flush to zero; in e4m3 they are as large as later ones, kRoom more, may
  // be.
  template <class T>
  static constexpr float kSlack = std::is_same_v<T, __half> ? 1.0f
                                  : kIsE4M3<T>              ? -5.0f
                                                            : 8.0f;
  template <class T>
  static constexpr float kRoom = kIsE4M3<T> ? 7.5f : 0.0f;
  // Of a thread in a tile, together: finite in f16, too.
  static constexpr float kMostWeight = 256.0f;
  static constexpr float kUnseen =
      -3e38f;  // the base of a row that has seen no key: x - b is finite

  float base[2] = {kUnseen, kUnseen};
  float l[2] = {0.0f, 0.0f};

  // Whether a tile's weights, whose sums these are, may stay, in all lanes of the warp: none is too
  // large, or a NaN. ptxas cannot move the sums behind the branch on the result.
  static __device__ __forceinline__ bool Fit(const float (&sums)[4]) {
    const float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    return !__any_sync(0xffffffffu, !(sum <= kMostWeight));
  }
  __device__ __forceinline__ void Add(const float (&sums)[4]) {
    l[0] += sums[0] + sums[1];
    l[1] += sums[2] + sums[3];
  }
  __device__ bool unseen() const { return fminf(base[0], base[1]) == kUnseen; }
  __device__ bool has_nan() const { return !(l[0] + l[1] >= 0.0f); }  // they are not negative
};

// x, of which the compiler knows nothing afterwards. So what follows from it is computed where it
// is needed, and not kept in registers, of which loops over keys have none to spare.
__device__ __forceinline__ int Anew(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Where a thread's rows are in their tile, and which columns of a tile of keys it has.
struct ThreadPlace {
  int row, column;  // the first of each

  // `few`: both consumers have the first rows.
  __device__ __forceinline__ explicit ThreadPlace(bool few) {
    const int thread = Anew(static_cast<int>(threadIdx.x));
    row = cuda::AccumulatorRow(thread % cuda::kWarpgroupThreads, 0);
    if (!few) row += (thread / cuda::kWarpgroupThreads - 1) * cuda::kWgmmaRows;
    column = cuda::AccumulatorColumn(thread, 0);
  }
};
struct TileRow {
  int token, head;  // of the sequence, of the group; tokens behind the last one count as it
};
__device__ __forceinline__ TileRow RowOf(const Params& p, const Task& task, int row) {
  const int token = TokenOfRow(p, row);
  return {min(task.first_token + token, task.sequence.tokens.size() - 1),
          task.kv_head * p.group + row - token * p.group};
}

// Scores where a row does not see the key, or the key does not exist, become -inf. `boxes`: which
// boxes of the tile exist.
template <int kScores>
__device__ __forceinline__ void MaskScores(float (&s)[kScores], const Params& p,
                                           const LaunchPlan& plan, const Task& task, int first_key,
                                           uint32_t boxes) {
  const ThreadPlace place(task.few);
  const Band band = BandOf(task.sequence, plan);
  const int first = first_key + place.column, len_k = task.sequence.len_k;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int token = RowOf(p, task, place.row + 8 * r).token;
    const uint32_t seen = OwnColumnsBelow(band.EndOf(token, len_k) - first) &
                          ~OwnColumnsBelow(band.BeginOf(token) - first);
#pragma unroll
    for (int i = 2 * r; i < kScores; i += 4) {
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (!(seen >> (i / 4 * 2 + e) & 1)) s[i + e] = -INFINITY;
    }
  }
  if (boxes == ~0u) return;
#pragma unroll
  for (int i = 0; i < kScores; i += 4) {  // two neighbors of each row, in the same box
    if (boxes >> ((i * 2 + place.column) >> plan.box_shift) & 1) continue;
#pragma unroll
    for (int e = 0; e < 4; ++e) s[i + e] = -INFINITY;
  }
}

template <int kScores>
__device__ __forceinline__ void SubtractAlibi(float (&s)[kScores], const Params& p,
                                              const Task& task, int first_key) {
  const ThreadPlace place(task.few);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const TileRow row = RowOf(p, task, place.row + 8 * r);
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

// Raises the bases if some x = s * factor of the warp exceeds its row's; l follows, and o has to be
// multiplied by `kept` when the result is true, in all lanes of the warp.
template <class T, int kScores>
__device__ __forceinline__ bool RaiseBases(const float (&s)[kScores], float factor, Rows& rows,
                                           float (&kept)[2]) {
  float top[2];
  bool exceeds = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float x = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
    for (int i = 4 + 2 * r; i < kScores; i += 4) x = fmaxf(x, fmaxf(s[i], s[i + 1]));
    top[r] = x * factor;
    exceeds |= top[r] > rows.base[r] + Rows::kRoom<T>;
  }
  if (!__any_sync(0xffffffffu, exceeds)) return false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float base = fmaxf(RowMaximum(top[r]) + Rows::kSlack<T>, rows.base[r]);
    kept[r] = cuda::Exp2(rows.base[r] - base);
    rows.base[r] = base;
    rows.l[r] *= kept[r];
  }
  return true;
}

// Products kFrom ... kTo - 1 become weights by the bases as they are; `sums` gets their sums, four
// a thread for the latency of additions. (Polynomials in place of some exponentials, as in
// FlashAttention-4, made Hopper slower: they take issue slots.)
template <int kFrom, int kTo, int kScores>
__device__ __forceinline__ void WeighByBases(float (&s)[kScores], float factor, const Rows& rows,
                                             float (&sums)[4]) {
#pragma unroll
  for (int i = kFrom; i < kTo; ++i) {
    s[i] = cuda::Exp2(fmaf(s[i], factor, -rows.base[i / 2 % 2]));
    sums[i % 4] += s[i];
  }
}

// After RaiseBases was not asked, and some of a tile's weights are too large: what it would have
// done, but for bases that are up to 1 higher. They rise by whole numbers, so that weights and
// their sums follow exactly. False, in all lanes of the warp, if sums are beyond kMost, or NaN, or
// a base is so far from 0 that it cannot rise by 1: nothing has changed then.
template <class T, int kScores>
__device__ __forceinline__ bool LowerWeights(float (&s)[kScores], Rows& rows, float (&sums)[4],
                                             float (&kept)[2]) {
  constexpr float kMost = 0x1p100f;  // so that 2^-rise is a normal number
  constexpr int kSlack = static_cast<int>(Rows::kSlack<T>);
  static_assert(kSlack == Rows::kSlack<T>);
  const bool finite = (sums[0] + sums[1]) + (sums[2] + sums[3]) < kMost;
  const bool near = fmaxf(fabsf(rows.base[0]), fabsf(rows.base[1])) < 0x1p23f;
  if (__any_sync(0xffffffffu, !finite || !near)) return false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float top = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
    for (int i = 4 + 2 * r; i < kScores; i += 4) top = fmaxf(top, fmaxf(s[i], s[i + 1]));
    // Above its logarithm, as its exponent says.
    const int log = static_cast<int>(std::bit_cast<uint32_t>(RowMaximum(top)) >> 23) - 126;
    const int rise = max(log + kSlack, 0);
    kept[r] = std::bit_cast<float>(static_cast<uint32_t>(127 - rise) << 23);
    rows.base[r] += static_cast<float>(rise);
    rows.l[r] *= kept[r];
    sums[2 * r] *= kept[r], sums[2 * r + 1] *= kept[r];
#pragma unroll
    for (int i = 2 * r; i < kScores; i += 4) s[i] *= kept[r], s[i + 1] *= kept[r];
  }
  return true;
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
__device__ __forceinline__ void SetZero(float (&o)[kOut]) {
#pragma unroll
  for (float& x : o) x = 0.0f;
}
template <int kOut>
__device__ __forceinline__ void ScaleRows(float (&o)[kOut], const float (&by)[2]) {
#pragma unroll
  for (int i = 0; i < kOut; ++i) o[i] *= by[i / 2 % 2];
}

}  // namespace intarsia::attention::sm90
