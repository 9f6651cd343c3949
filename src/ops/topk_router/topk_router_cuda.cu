#include "src/core/cuda/launch.h"
#include "src/core/cuda/rows.cuh"
#include "src/core/cuda/vec.cuh"
#include "src/core/dispatch.h"
#include "src/core/round.h"
#include "src/ops/topk_router/topk_router.h"

namespace intarsia::cuda {
namespace {

enum class Scoring { kSoftmax, kSigmoid, kSoftplusSqrt };

struct RouterParams {
  const void* logits;
  const float* bias;  // or null
  float* weights;
  int32_t* ids;
  int64_t rows;
  int e, top_k, num_groups, topk_groups;
  Scoring scoring;
  bool renormalize;
  float scale;
};

constexpr int kWarps = 4;  // of a block, each with a row

// An expert, or a group, and what it is compared by; none has id kNobody.
constexpr int kNobody = 1 << 30;
struct Candidate {
  float key;
  int id;
  __device__ __forceinline__ bool IsBetter(const Candidate& other) const {
    return key > other.key || (key == other.key && id < other.id);
  }
};
// Numbers other than NaN as integers in the same order, above 0; both zeros are one. A warp has a
// reduction of integers in one instruction (PTX ISA, "redux.sync").
__device__ __forceinline__ uint32_t Ordered(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float FromOrdered(uint32_t x) {
  return __uint_as_float(x >> 31 ? x ^ 0x80000000u : ~x);
}
__device__ __forceinline__ float LargestOfWarp(float x) {
  return FromOrdered(__reduce_max_sync(0xffffffffu, Ordered(x)));
}
__device__ __forceinline__ Candidate BestOfWarp(const Candidate& mine) {
  const uint32_t key = mine.id == kNobody ? 0 : Ordered(mine.key);
  const uint32_t best = __reduce_max_sync(0xffffffffu, key);
  const int id = __reduce_min_sync(0xffffffffu, key == best ? mine.id : kNobody);
  return {id == kNobody ? -INFINITY : FromOrdered(best), id};
}

// A row in the registers of a warp: lane i has the experts i, i + 32 ...
template <int kEach>
class RouterRow {
 public:
  template <class T>
  __device__ __forceinline__ RouterRow(const RouterParams& p, const T* logits) : p_(p) {
    float largest = -INFINITY;
    const int lane = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int id = 32 * i + lane;
      open_ |= static_cast<uint32_t>(id < p.e) << i;
      score_[i] = key_[i] = id < p.e ? ToFloat(logits[id]) : -INFINITY;
      largest = fmaxf(largest, key_[i]);
    }
    largest = LargestOfWarp(largest);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float x = score_[i];
      if (p.scoring == Scoring::kSoftmax)
        score_[i] = open_ >> i & 1 ? expf(x - largest) : 0.0f;
      else if (p.scoring == Scoring::kSigmoid)
        score_[i] = 1.0f / (1.0f + expf(-x));
      else
        score_[i] = sqrtf(fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))));
      sum += score_[i];
    }
    const float total = p.scoring == Scoring::kSoftmax ? SumOfWarp(sum) : 1.0f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      score_[i] /= total;
      if (p.bias && open_ >> i & 1) key_[i] = score_[i] + p.bias[32 * i + lane];
      if (!(key_[i] >= -INFINITY)) key_[i] = -INFINITY;  // NaN
    }
  }

  // Closes the experts of all groups but the best.
  __device__ __forceinline__ void DropGroups() {
    const int each = p_.e / p_.num_groups, lane = static_cast<int>(threadIdx.x);
    Candidate mine{-INFINITY, kNobody};  // lane i has group i
    for (int group = 0; group < p_.num_groups; ++group) {
      const Candidate first = BestIn(group * each, group * each + each, kNobody);
      float score = first.key;
      if (p_.bias && each > 1) score += BestIn(group * each, group * each + each, first.id).key;
      if (!(score >= -INFINITY)) score = -INFINITY;  // the sum of both infinities
      if (lane == group) mine = {score, group};
    }
    uint32_t kept = 0;
    for (int i = 0; i < p_.topk_groups; ++i) {
      const Candidate best = BestOfWarp(mine);
      kept |= 1u << best.id;
      if (lane == best.id) mine = {-INFINITY, kNobody};
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (open_ >> i & 1 && !(kept >> ((32 * i + lane) / each) & 1)) open_ &= ~(1u << i);
  }

  // The best open expert and its score, in all lanes; it is closed then.
  __device__ __forceinline__ int TakeBest(float& score) {
    const Candidate best = BestIn(0, p_.e, kNobody);
    const int lane = static_cast<int>(threadIdx.x);
    float found = 0.0f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (32 * i + lane != best.id) continue;
      found = score_[i];
      open_ &= ~(1u << i);
    }
    score = __shfl_sync(0xffffffffu, found, best.id % 32);
    return best.id;
  }

 private:
  __device__ __forceinline__ Candidate BestIn(int begin, int end, int without) const {
    Candidate best{-INFINITY, kNobody};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const Candidate candidate = {key_[i], 32 * i + static_cast<int>(threadIdx.x)};
      if (open_ >> i & 1 && candidate.id >= begin && candidate.id < end &&
          candidate.id != without && candidate.IsBetter(best))
        best = candidate;
    }
    return BestOfWarp(best);
  }

  const RouterParams& p_;
  float score_[kEach], key_[kEach];
  uint32_t open_ = 0;  // bit i: the lane's expert i may be chosen
};

template <class T, int kEach>
__global__ void __launch_bounds__(32 * kWarps)
    RouterKernel(const __grid_constant__ RouterParams p) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.y;
  if (row >= p.rows) return;
  RouterRow<kEach> experts(p, static_cast<const T*>(p.logits) + row * p.e);
  if (p.topk_groups < p.num_groups) experts.DropGroups();
  // A lane has one of 32 results. Those behind which others come are stored before the sum is
  // known.
  const int lane = static_cast<int>(threadIdx.x), last = (p.top_k - 1) / 32 * 32;
  float sum = 0.0f, weight = 0.0f;
  int chosen = 0;
  float* const weights = p.weights + row * p.top_k;
  const auto store = [&](int first, float factor) {
    if (first + lane >= p.top_k) return;
    weights[first + lane] = weight * factor;
    p.ids[row * p.top_k + first + lane] = chosen;
  };
  for (int i = 0; i < p.top_k; ++i) {
    float score;
    const int id = experts.TakeBest(score);
    sum += score;
    if (lane == i % 32) weight = score, chosen = id;
    if (i % 32 == 31 && i < last) store(i - 31, p.renormalize ? 1.0f : p.scale);
  }
  const float factor = p.renormalize && sum != 0.0f ? p.scale / sum : p.scale;
  store(last, factor);
  if (!p.renormalize) return;
  for (int i = lane; i < last; i += 32) weights[i] *= factor;
}

template <class T, int kEach>
const Kernel kKernel("RouterKernel", reinterpret_cast<const void*>(&RouterKernel<T, kEach>));

}  // namespace
}  // namespace intarsia::cuda

namespace intarsia {

Status TopkRouter::Run(const CudaContext& context) const {
  const int64_t e = logits.dim(-1), rows = e == 0 ? 0 : logits.size() / e;
  const cuda::RouterParams p{.logits = logits.data,
                             .bias = bias ? bias->as<const float>() : nullptr,
                             .weights = weights.as<float>(),
                             .ids = ids.as<int32_t>(),
                             .rows = rows,
                             .e = static_cast<int>(e),
                             .top_k = static_cast<int>(top_k),
                             .num_groups = static_cast<int>(num_groups),
                             .topk_groups = static_cast<int>(topk_groups),
                             .scoring = scoring == "softmax"   ? cuda::Scoring::kSoftmax
                                        : scoring == "sigmoid" ? cuda::Scoring::kSigmoid
                                                               : cuda::Scoring::kSoftplusSqrt,
                             .renormalize = renormalize,
                             .scale = scale};
  const cuda::LaunchConfig config{{CeilDiv<int64_t>(rows, cuda::kWarps)}, dim3(32, cuda::kWarps)};
  return DispatchDType<kF32, kF16, kBF16>("logits", logits.dtype, [&]<DType kType>() {
    return DispatchInt<4, 8, 16, 32>("e / 32", CeilDiv<int64_t>(e, 32), [&]<int kEach>() {
      return cuda::Launch(context, cuda::kKernel<cuda::DeviceT<kType>, kEach>, config, p);
    });
  });
}

}  // namespace intarsia
