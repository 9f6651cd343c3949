// What goes before and after the gradient's main kernel (sm80/backward.cuh).
#include <algorithm>
#include <initializer_list>

#include "src/attention/backward.h"
#include "src/attention/cuda/choose.h"
#include "src/attention/cuda/ragged.cuh"
#include "src/attention/cuda/sm80/backward_launch.h"
#include "src/core/cuda/launch.h"
#include "src/core/cuda/rows.cuh"
#include "src/core/cuda/vec.cuh"

namespace intarsia::attention {
namespace {

constexpr int kThreads = 256;
constexpr int kElements = 8;  // a thread's; d is a multiple

// Eight neighboring elements as f32 and back.
template <class T>
__device__ __forceinline__ void Load8(float (&x)[kElements], const T* from, bool aligned) {
  constexpr int kSize = cuda::Vec<T>::kSize;
  if (aligned) {
#pragma unroll
    for (int i = 0; i < kElements; i += kSize) {
      const auto part = *reinterpret_cast<const cuda::Vec<T>*>(from + i);
#pragma unroll
      for (int j = 0; j < kSize; ++j) x[i + j] = cuda::ToFloat(part.at[j]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kElements; ++i) x[i] = cuda::ToFloat(from[i]);
  }
}
template <class T>
__device__ __forceinline__ void Store8(T* to, const float (&x)[kElements], bool aligned) {
  constexpr int kSize = cuda::Vec<T>::kSize;
  if (aligned) {
#pragma unroll
    for (int i = 0; i < kElements; i += kSize) {
      cuda::Vec<T> part;
#pragma unroll
      for (int j = 0; j < kSize; ++j) part.at[j] = cuda::FromFloat<T>(x[i + j]);
      *reinterpret_cast<cuda::Vec<T>*>(to + i) = part;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kElements; ++i) to[i] = cuda::FromFloat<T>(x[i]);
  }
}

// RowStats of every row; zeros where the main kernel adds, or may write nothing. `lanes`, a power
// of two, threads share a row of q and dout.
template <class T>
__global__ void __launch_bounds__(kThreads)
    PrepareKernel(const __grid_constant__ BackwardParams b, int lanes, bool aligned) {
  const Params& p = b.forward;
  const BackwardWorkspace workspace(b);
  const int d = static_cast<int>(p.head_dim);
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t threads = int64_t{gridDim.x} * kThreads;
  const float zeros[kElements] = {};
  const int64_t num_rows = b.query_rows(), rows_at_once = threads / lanes;
  // All lanes of a warp go through the loop equally often, since they sum together.
  for (int64_t first = 0; first < num_rows; first += rows_at_once) {
    const int64_t row = first + thread / lanes;
    const int column = static_cast<int>(thread % lanes) * kElements;
    float delta = 0.0f;
    if (row < num_rows && column < d) {
      float out[kElements], dout[kElements];
      Load8(out, static_cast<const T*>(p.out) + row * d + column, aligned);
      Load8(dout, static_cast<const T*>(b.dout) + row * d + column, aligned);
#pragma unroll
      for (int i = 0; i < kElements; ++i) delta += out[i] * dout[i];
      Store8(workspace.dq() + row * d + column, zeros, true);
    }
    for (int distance = lanes / 2; distance > 0; distance /= 2)
      delta += __shfl_xor_sync(0xffffffffu, delta, distance);
    if (row < num_rows && column == 0) {
      const int64_t at = row % p.num_heads * p.num_tokens + row / p.num_heads;  // in [h, t]
      const float lse = p.lse[at];
      workspace.stats()[row] = {lse == -INFINITY ? INFINITY : lse,
                                b.dlse ? delta - b.dlse[at] : delta};
    }
  }
  const int64_t key_elements = p.max_len_k * p.cache.num_kv_heads * d;
  for (int64_t i = thread * kElements; i < key_elements; i += threads * kElements) {
    Store8(static_cast<T*>(b.dk) + i, zeros, aligned);
    Store8(static_cast<T*>(b.dv) + i, zeros, aligned);
  }
  for (int64_t i = thread; i < workspace.num_counters(); i += threads) workspace.counters()[i] = 0;
}

template <class T>
const cuda::Kernel kPrepareKernel("PrepareKernel",
                                  reinterpret_cast<const void*>(&PrepareKernel<T>));

// dq = scale * its f32 form in the workspace.
__global__ void __launch_bounds__(kThreads)
    RoundKernel(const __grid_constant__ BackwardParams b, bool aligned) {
  const float* const from = BackwardWorkspace(b).dq();
  const int64_t elements = b.query_rows() * b.forward.head_dim;
  for (int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kElements; i < elements;
       i += int64_t{gridDim.x} * kThreads * kElements) {
    float x[kElements];
    Load8(x, from + i, true);
#pragma unroll
    for (int j = 0; j < kElements; ++j) x[j] *= b.forward.scale;
    if (b.forward.dtype == kF32)
      Store8(static_cast<float*>(b.dq) + i, x, aligned);
    else if (b.forward.dtype == kF16)
      Store8(static_cast<__half*>(b.dq) + i, x, aligned);
    else
      Store8(static_cast<__nv_bfloat16*>(b.dq) + i, x, aligned);
  }
}

const cuda::Kernel kRoundKernel("RoundKernel", reinterpret_cast<const void*>(&RoundKernel));

// dsinks, a block a head.
__global__ void __launch_bounds__(kThreads) SinksKernel(const __grid_constant__ BackwardParams b) {
  const Params& p = b.forward;
  const RowStats* const stats = BackwardWorkspace(b).stats();
  const int64_t head = blockIdx.x;
  const float sink = p.sinks[head];
  const int begin = FirstToken(p);
  int end = begin;
  for (int i = threadIdx.x % 32; i < p.num_seqs; i += 32) end = max(end, EndOf(p, i));
  end = __reduce_max_sync(0xffffffffu, end);
  float sum = 0.0f;
  for (int64_t token = begin + threadIdx.x; token < end; token += kThreads) {
    const RowStats row = stats[token * p.num_heads + head];
    sum -= expf(sink - row.lse) * row.delta;
  }
  sum = cuda::ReduceRow<cuda::Plus>(sum);
  if (threadIdx.x == 0) b.dsinks[head] = sum;
}

const cuda::Kernel kSinksKernel("SinksKernel", reinterpret_cast<const void*>(&SinksKernel));

// Whether rows of all arrays begin at multiples of 16 bytes, and CopyRows can count offsets in 16
// bytes with 32 bits.
template <class T>
bool Aligned(const BackwardParams& b) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  constexpr int64_t kLimit = (int64_t{1} << 36) / kSize;
  const Params& p = b.forward;
  const CacheView& c = p.cache;
  const auto aligned = [](const void* data, std::initializer_list<int64_t> strides) {
    return std::ranges::all_of(
        strides, [&](int64_t stride) { return cuda::AllAligned16(stride * kSize, data); });
  };
  const int64_t d = p.head_dim;
  return aligned(p.q, {p.q_token_stride, p.q_head_stride}) &&
         aligned(c.k, {c.k_strides.slot, c.k_strides.head}) &&
         aligned(c.v, {c.v_strides.slot, c.v_strides.head}) &&
         cuda::AllAligned16(d * kSize, p.out, b.dout, b.dq, b.dk, b.dv) &&
         p.num_tokens * p.q_token_stride + p.num_heads * p.q_head_stride < kLimit &&
         b.query_rows() * d < kLimit &&
         p.max_len_k * std::max(c.k_strides.slot, c.v_strides.slot) < kLimit;
}

}  // namespace

Status RunBackward(const BackwardParams& params, const CudaContext& context) {
  BackwardParams b = params;
  b.forward.SetGroup();
  const Params& p = b.forward;
  INTARSIA_RETURN_IF_ERROR(CheckWorkspace(b));
  if (reinterpret_cast<uintptr_t>(p.workspace) % 16 != 0)
    return InvalidArgument("workspace must begin at a multiple of 16 bytes");
  const Candidate* choice = nullptr;
  INTARSIA_RETURN_IF_ERROR(ChooseBackward(b, *context.device, choice));
  return DispatchDType<kF32, kF16, kBF16>("q", p.dtype, [&]<DType kType>() -> Status {
    using T = cuda::DeviceT<kType>;
    const bool aligned = Aligned<T>(b);
    const int lanes =
        static_cast<int>(std::bit_ceil(static_cast<uint64_t>(p.head_dim / kElements)));
    const int64_t rows = std::max(b.query_rows(), p.max_len_k * p.cache.num_kv_heads);
    INTARSIA_RETURN_IF_ERROR(cuda::Launch(context, kPrepareKernel<T>,
                                          cuda::GridStride(std::max<int64_t>(rows, 1) * lanes), b,
                                          lanes, aligned));
    if (p.num_tokens > 0 && p.num_heads > 0)
      INTARSIA_RETURN_IF_ERROR(LaunchBackwardOf<kType>(b, context, choice->tiles, aligned));
    INTARSIA_RETURN_IF_ERROR(cuda::Launch(context, kRoundKernel,
                                          cuda::GridStride(b.query_rows() * p.head_dim / kElements),
                                          b, aligned));
    if (!b.dsinks) return {};
    return cuda::Launch(context, kSinksKernel, cuda::LaunchConfig{{p.num_heads}, dim3(kThreads)},
                        b);
  });
}

}  // namespace intarsia::attention
