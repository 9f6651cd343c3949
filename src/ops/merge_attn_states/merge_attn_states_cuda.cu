#include <algorithm>

#include "src/core/cuda/launch.h"
#include "src/core/cuda/vec.cuh"
#include "src/core/dispatch.h"
#include "src/core/round.h"
#include "src/ops/merge_attn_states/merge_attn_states.h"

namespace intarsia {
namespace {

using cuda::Vec;

constexpr int kThreads = 256;

template <class T>
struct Arguments {
  const T *prefix, *suffix;              // [t, h, d]
  const float *prefix_lse, *suffix_lse;  // [h, t]
  T* out;
  float* lse;
  int64_t t;
  int h;
  int64_t d;
};

// How much of each set a row takes.
struct Weights {
  float prefix, suffix, lse;
};

__device__ __forceinline__ Weights WeightsOf(float prefix_lse, float suffix_lse) {
  const float p = prefix_lse == INFINITY ? -INFINITY : prefix_lse;
  const float s = suffix_lse == INFINITY ? -INFINITY : suffix_lse;
  const float top = p > s ? p : s;
  if (p == -INFINITY && s == -INFINITY) return {1.0f, 0.0f, -INFINITY};
  const float e_prefix = expf(p - top), e_suffix = expf(s - top), sum = e_prefix + e_suffix;
  return {e_prefix / sum, e_suffix / sum, top + logf(sum)};
}

// out[t, h, :] = sum of the two sets' shares. A block does blockDim.y tokens of one head, so that
// it uses whole sectors of the lses; blockDim.x threads go through a row.
template <class T, int kBytes>
__global__ void __launch_bounds__(kThreads) MergeKernel(Arguments<T> a) {
  using V = Vec<T, kBytes>;
  const int head = static_cast<int>(blockIdx.x % a.h);
  const int64_t token = static_cast<int64_t>(blockIdx.x / a.h) * blockDim.y + threadIdx.y;
  if (token >= a.t) return;
  const int64_t at = head * a.t + token, start = (token * a.h + head) * a.d;
  const Weights w = WeightsOf(a.prefix_lse[at], a.suffix_lse[at]);
  if (threadIdx.x == 0) a.lse[at] = w.lse;
  for (int64_t i = threadIdx.x; i < a.d / V::kSize; i += blockDim.x) {
    V prefix = {}, suffix = {}, out;
    // A set that counts for nothing is not looked at.
    if (w.prefix != 0.0f) prefix = reinterpret_cast<const V*>(a.prefix + start)[i];
    if (w.suffix != 0.0f) suffix = reinterpret_cast<const V*>(a.suffix + start)[i];
#pragma unroll
    for (int j = 0; j < V::kSize; ++j)
      out.at[j] = cuda::FromFloat<T>(w.prefix * cuda::ToFloat(prefix.at[j]) +
                                     w.suffix * cuda::ToFloat(suffix.at[j]));
    reinterpret_cast<V*>(a.out + start)[i] = out;
  }
}

template <class T, int kBytes>
const cuda::Kernel kMergeKernel("MergeKernel",
                                reinterpret_cast<const void*>(&MergeKernel<T, kBytes>));

}  // namespace

Status MergeAttnStates::Run(const CudaContext& context) const {
  return DispatchDType<kF32, kF16, kBF16>("prefix_out", out.dtype, [&]<DType kType>() -> Status {
    using T = cuda::DeviceT<kType>;
    constexpr int kElement = sizeof(T);
    const int64_t t = out.dim(0), h = out.dim(1), d = out.dim(2);
    const bool aligned =
        cuda::AllAligned16(d * kElement, prefix_out.data, suffix_out.data, out.data);
    const int64_t vectors = std::max<int64_t>(aligned ? d * kElement / 16 : d, 1);
    const auto x = static_cast<unsigned>(std::min<int64_t>(vectors, kThreads));
    const auto y = static_cast<unsigned>(std::clamp<int64_t>(t, 1, kThreads / x));
    const Arguments<T> arguments{prefix_out.as<const T>(),
                                 suffix_out.as<const T>(),
                                 prefix_lse.as<const float>(),
                                 suffix_lse.as<const float>(),
                                 out.as<T>(),
                                 lse.as<float>(),
                                 t,
                                 static_cast<int>(h),
                                 d};
    return Launch(context, aligned ? kMergeKernel<T, 16> : kMergeKernel<T, kElement>,
                  {{CeilDiv<int64_t>(t, y) * h}, dim3(x, y)}, arguments);
  });
}

}  // namespace intarsia
