// fused_experts of few tokens, whose pairs seldom share an expert: two kernels and no sort.
//   FewUpKernel    gated[p, :] = act(round_T(x[p / k, :] w1[e]^T + w1_bias[e])), e the expert of p;
//   FewDownKernel  out[t, :] = sum over j of weights[t, j] round_T(gated[t k + j, :] w2[e]^T
//                                                                  + w2_bias[e]).
// Memory bounds both. Weights go from there right into registers, as the A operand of m16n8k16 with
// 16 rows of w: stream.cuh says why no element then moves between lanes. The vector is the first
// column of B; the other seven are zeros. A warp takes kFewStep elements of the sum at a time, and
// the warps of a row take turns, so that they read neighboring memory at the same time.
#pragma once
#include "src/activation/gated_cuda.cuh"
#include "src/core/cuda/launch.h"
#include "src/core/cuda/mma.cuh"
#include "src/core/round.h"
#include "src/ops/fused_experts/pass.cuh"

namespace intarsia::cuda {
namespace {

constexpr int kFewStep = 64;                 // elements of the sum: 128 bytes of each row
constexpr int kFewAhead = 3;                 // steps of a warp in flight
constexpr int kFewRows = 16;                 // of w, a warp's
constexpr int kFewUpWarps = 4;               // that share a sum
constexpr int kFewDownWarps = 8;             // that share the experts of a token, and their sums
constexpr int kFewUpColumns = kFewRows / 2;  // of gated: a row of w is a gate or an up

// Products of 16 rows of w with one vector, by a warp, of every stride-th step of the sum from
// `first` on. Lane's rows: lane / 4, which begins at `low`, and lane / 4 + 8, at `high`.
template <DType kType>
class FewRows {
 public:
  using M = Mma<kType>;
  using T = typename M::T;

  __device__ __forceinline__ FewRows(const T* low, const T* high, int size, int first, int stride)
      : low_(low + Column()), high_(high + Column()), size_(size), first_(first), stride_(stride) {
#pragma unroll
    for (int i = 0; i < kFewAhead; ++i) LoadWeights(i, i);
  }

  // All products; those of w in flight already. sums[0]: of the row lane / 4, sums[2]: of lane / 4
  // + 8; in lanes whose lane % 4 is 0.
  __device__ __forceinline__ void Multiply(const T* vector, float (&sums)[4]) {
    vector_ = vector + Column();
#pragma unroll
    for (int i = 0; i < kFewAhead; ++i) LoadVector(i, i);
    const int steps = (size_ + kFewStep - 1) / kFewStep;
#pragma unroll 1
    for (int done = 0; first_ + done * stride_ < steps; done += kFewAhead) {
#pragma unroll
      for (int i = 0; i < kFewAhead; ++i) {
        AddStep(i, sums);
        LoadWeights(i, done + kFewAhead + i);
        LoadVector(i, done + kFewAhead + i);
      }
    }
  }

 private:
  struct Step {
    uint4 low[2], high[2], vector[2];
  };
  static constexpr uint4 kNone = {0, 0, 0, 0};

  static __device__ __forceinline__ int Column() { return static_cast<int>(threadIdx.x) % 4 * 8; }
  // Half a step: 32 elements, of which a lane has 8.
  __device__ __forceinline__ int ElementOf(int index, int half) const {
    return (first_ + index * stride_) * kFewStep + half * 32;
  }
  __device__ __forceinline__ void LoadWeights(int place, int index) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = ElementOf(index, half);
      const bool exists = at + Column() < size_;
      steps_[place].low[half] = exists ? LoadOnce16(low_ + at) : kNone;
      steps_[place].high[half] = exists ? LoadOnce16(high_ + at) : kNone;
    }
  }
  __device__ __forceinline__ void LoadVector(int place, int index) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = ElementOf(index, half);
      const bool exists = threadIdx.x % 32 < 4 && at + Column() < size_;
      steps_[place].vector[half] = exists ? *reinterpret_cast<const uint4*>(vector_ + at) : kNone;
    }
  }
  __device__ __forceinline__ void AddStep(int place, float (&sums)[4]) const {
    const Step& step = steps_[place];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 &l = step.low[half], &h = step.high[half], &v = step.vector[half];
      M::MultiplyAdd(sums, {{l.x, h.x, l.y, h.y}}, {{v.x, v.y}});
      M::MultiplyAdd(sums, {{l.z, h.z, l.w, h.w}}, {{v.z, v.w}});
    }
  }

  const T *low_, *high_, *vector_ = nullptr;
  const int size_, first_, stride_;
  Step steps_[kFewAhead];
};

// Puts a warp's sums where rows[16] is.
__device__ __forceinline__ void StoreFew(float* rows, const float (&sums)[4]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (lane % 4 != 0) return;
  rows[lane / 4] = sums[0];
  rows[lane / 4 + 8] = sums[2];
}

// Grid: kFewUpColumns columns of gated each, a pair after the other.
template <DType kType, template <class> class Activation>
__global__ void __launch_bounds__(32 * kFewUpWarps, 4)
    FewUpKernel(const __grid_constant__ ExpertsPass pass, Activation<DeviceT<kType>> act) {
  using T = DeviceT<kType>;
  constexpr bool kInTurn = requires { Activation<T>::kMayBeInTurn; };
  AwaitPrevious();
  LetNextBegin();
  __shared__ float partial[kFewUpWarps][kFewRows];
  const int tiles = static_cast<int>(pass.i) / kFewUpColumns;
  const int pair = static_cast<int>(blockIdx.x) / tiles;
  const int first = static_cast<int>(blockIdx.x) % tiles * kFewUpColumns;
  const int64_t expert = pass.ExpertOf(pair);
  if (expert < 0) return;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  // The rows of w that give column c of gated.
  const auto gate = [&](int c) { return kInTurn ? int64_t{2} * c : int64_t{c}; };
  const auto up = [&](int c) { return kInTurn ? int64_t{2} * c + 1 : pass.i + c; };
  const T* const w = static_cast<const T*>(pass.w1) + expert * 2 * pass.i * pass.n;
  const int64_t low = gate(first + lane / 4), high = up(first + lane / 4);
  FewRows<kType> rows(w + low * pass.n, w + high * pass.n, static_cast<int>(pass.n), warp,
                      kFewUpWarps);
  float sums[4] = {};
  if (pass.w1_bias && warp == 0) {
    const T* const bias = static_cast<const T*>(pass.w1_bias) + expert * 2 * pass.i;
    sums[0] = ToFloat(bias[low]), sums[2] = ToFloat(bias[high]);
  }
  rows.Multiply(static_cast<const T*>(pass.x) + pair / static_cast<int>(pass.k) * pass.n, sums);
  StoreFew(partial[warp], sums);
  __syncthreads();
  if (threadIdx.x >= kFewUpColumns) return;
  const int column = static_cast<int>(threadIdx.x);
  const auto result = [&](int row) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kFewUpWarps; ++i) sum += partial[i][row];
    return FromFloat<T>(sum);
  };
  const GateAndUp<T, 1> both{{{result(column)}}, {{result(column + kFewUpColumns)}}};
  static_cast<T*>(pass.gated)[pair * pass.i + first + column] =
      FromFloat<T>(Product(act, both).at[0]);
}

// How many warps share the sum of an expert.
constexpr int FewDownShare(int64_t k) {
  return k >= kFewDownWarps ? 1 : static_cast<int>(kFewDownWarps / k);
}

// Grid: kFewRows columns of out each, a token after the other.
template <DType kType>
__global__ void __launch_bounds__(32 * kFewDownWarps, 2)
    FewDownKernel(const __grid_constant__ ExpertsPass pass, int share) {
  using T = DeviceT<kType>;
  __shared__ float partial[kFewDownWarps][kFewRows], weights[kFewDownWarps];
  __shared__ bool exists[kFewDownWarps];
  const int n = static_cast<int>(pass.n), tiles = CeilDiv(n, kFewRows);
  const int token = static_cast<int>(blockIdx.x) / tiles;
  const int first = static_cast<int>(blockIdx.x) % tiles * kFewRows;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int together = kFewDownWarps / share;  // experts at a time
  const int k = static_cast<int>(pass.k), column = first + static_cast<int>(threadIdx.x);
  const bool gathers = threadIdx.x < kFewRows && column < n;
  float out = 0.0f;
  for (int begin = 0; begin < k; begin += together) {
    const int its = warp / share, part = warp % share, pair = token * k + begin + its;
    const int64_t expert = its < together && begin + its < k ? pass.ExpertOf(pair) : -1;
    if (expert >= 0) {
      // n is a multiple of 8: if the upper rows are none, the lower ones stand in for them.
      const int64_t low = expert * n + first + lane / 4, high = first + 8 < n ? low + 8 : low;
      const T* const w = static_cast<const T*>(pass.w2);
      FewRows<kType> rows(w + low * pass.i, w + high * pass.i, static_cast<int>(pass.i), part,
                          share);
      float sums[4] = {};
      if (pass.w2_bias && part == 0) {
        const T* const bias = static_cast<const T*>(pass.w2_bias);
        sums[0] = ToFloat(bias[low]), sums[2] = ToFloat(bias[high]);
      }
      if (lane == 0 && part == 0) weights[its] = WeightOf<T>(pass, pair);
      AwaitPrevious();  // costs nothing once it has returned
      rows.Multiply(static_cast<const T*>(pass.gated) + pair * pass.i, sums);
      StoreFew(partial[warp], sums);
    }
    if (lane == 0 && part == 0) exists[its] = expert >= 0;
    __syncthreads();
    for (int i = 0; gathers && i < together; ++i) {
      if (!exists[i]) continue;
      float sum = 0.0f;
      for (int part = 0; part < share; ++part) sum += partial[i * share + part][threadIdx.x];
      out += weights[i] * RoundTo<T>(sum);
    }
    __syncthreads();
  }
  AwaitPrevious();  // all threads: behind this kernel the one before it is done, too
  if (gathers) static_cast<T*>(pass.out)[int64_t{token} * n + column] = FromFloat<T>(out);
}

template <DType kType, template <class> class Activation>
const Kernel kFewUpKernel("FewUpKernel",
                          reinterpret_cast<const void*>(&FewUpKernel<kType, Activation>));
template <DType kType>
const Kernel kFewDownKernel("FewDownKernel", reinterpret_cast<const void*>(&FewDownKernel<kType>));

template <DType kType, template <class> class Activation, class... Attributes>
Status RunFewTokens(const CudaContext& context, const ExpertsPass& pass, Attributes... attributes) {
  using T = DeviceT<kType>;
  const LaunchConfig up{.grid = {pass.pairs() * (pass.i / kFewUpColumns)},
                        .block = dim3(32 * kFewUpWarps),
                        .overlaps_previous = true};
  INTARSIA_RETURN_IF_ERROR(
      Launch(context, kFewUpKernel<kType, Activation>, up, pass, Activation<T>{attributes...}));
  const LaunchConfig down{.grid = {pass.tokens * CeilDiv<int64_t>(pass.n, kFewRows)},
                          .block = dim3(32 * kFewDownWarps),
                          .overlaps_previous = true};
  return Launch(context, kFewDownKernel<kType>, down, pass, FewDownShare(pass.k));
}

}  // namespace
}  // namespace intarsia::cuda
