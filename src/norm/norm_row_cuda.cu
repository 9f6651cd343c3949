// out[row] = (x[row] + residual[row]) / sqrt(mean((x[row] + residual[row])^2) + eps) * weight;
// without a residual, of x alone. Roundings: rms_norm.h and fused_add_rms_norm.h.
//
// A row is read once: its first kItems vectors a thread stay in registers between the reduction and
// the scaling. What a longer row has beyond that is read again, from the L2 cache most likely.
#include <type_traits>

#include "src/core/cuda/launch.h"
#include "src/core/cuda/vec.cuh"
#include "src/core/dispatch.h"
#include "src/norm/norm_row_cuda.h"

namespace intarsia::cuda {
namespace {

constexpr int kNormItems = 4;
constexpr int kMaxNormThreads = 1024;

// The sum over the threads of a row: a warp if blockDim.x is 32, else the whole block.
__device__ __forceinline__ float RowSum(float x) {
  x = WarpSum(x);
  if (blockDim.x == 32) return x;
  __shared__ float warps[32];
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  return WarpSum(threadIdx.x % 32 < blockDim.x / 32 ? warps[threadIdx.x % 32] : 0.0f);
}

// A vector of a row between the two passes: as it was loaded, which takes half the registers of
// f32, so that more rows are on their way; or the sum with the residual as the norm wants to see
// it, rounded unless the norm is of the unrounded one.
template <class T, int kBytes, bool kResidual>
struct RowVector {
  using V = Vec<T, kBytes>;
  Vec<std::conditional_t<kResidual, float, T>, kResidual ? V::kSize * 4 : kBytes> kept;

  __device__ __forceinline__ float At(int j) const { return ToFloat(kept.at[j]); }

  __device__ __forceinline__ void Load(const NormArguments& a, int64_t at) {
    const V x = *reinterpret_cast<const V*>(static_cast<const T*>(a.x) + at);
    if constexpr (!kResidual) {
      kept = x;
    } else {
      const V residual = *reinterpret_cast<const V*>(static_cast<const T*>(a.residual) + at);
#pragma unroll
      for (int j = 0; j < V::kSize; ++j) {
        const float sum = ToFloat(x.at[j]) + ToFloat(residual.at[j]);
        kept.at[j] = a.before_weight ? sum : ToFloat(FromFloat<T>(sum));
      }
    }
  }

  __device__ __forceinline__ float SumOfSquares() const {
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < V::kSize; ++j) squares += At(j) * At(j);
    return squares;
  }

  __device__ __forceinline__ void Store(const NormArguments& a, int64_t at, int64_t column,
                                        float rstd) const {
    V weight, out, sum;
    if (a.weight) weight = *reinterpret_cast<const V*>(static_cast<const T*>(a.weight) + column);
#pragma unroll
    for (int j = 0; j < V::kSize; ++j) {
      const float w = a.weight       ? ToFloat(weight.at[j])
                      : a.weight_f32 ? a.weight_f32[column + j]
                                     : 1.0f;
      const float y = At(j) * rstd;
      out.at[j] = FromFloat<T>((a.before_weight ? ToFloat(FromFloat<T>(y)) : y) * w);
      sum.at[j] = FromFloat<T>(At(j));
    }
    *reinterpret_cast<V*>(static_cast<T*>(a.out) + at) = out;
    if constexpr (kResidual) *reinterpret_cast<V*>(static_cast<T*>(a.residual_out) + at) = sum;
  }
};

// A row a threadIdx.y. kBytes: 16, or one element where alignment or n does not allow more.
template <class T, int kBytes, bool kResidual>
__global__ void __launch_bounds__(kMaxNormThreads) NormKernel(NormArguments a) {
  constexpr int kSize = Vec<T, kBytes>::kSize;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;  // only where a row is a warp, so no barrier is missed
  const int64_t start = row * a.n, vectors = a.n / kSize;
  const auto at = [&](int k) { return threadIdx.x + static_cast<int64_t>(k) * blockDim.x; };
  RowVector<T, kBytes, kResidual> kept[kNormItems], again;
#pragma unroll
  for (int k = 0; k < kNormItems; ++k)
    if (at(k) < vectors) kept[k].Load(a, start + at(k) * kSize);
  float squares = 0.0f;
#pragma unroll
  for (int k = 0; k < kNormItems; ++k)
    if (at(k) < vectors) squares += kept[k].SumOfSquares();
  for (int64_t i = at(kNormItems); i < vectors; i += blockDim.x) {
    again.Load(a, start + i * kSize);
    squares += again.SumOfSquares();
  }
  const float rstd = rsqrtf(RowSum(squares) / static_cast<float>(a.n) + a.eps);
#pragma unroll
  for (int k = 0; k < kNormItems; ++k)
    if (at(k) < vectors) kept[k].Store(a, start + at(k) * kSize, at(k) * kSize, rstd);
  for (int64_t i = at(kNormItems); i < vectors; i += blockDim.x) {
    again.Load(a, start + i * kSize);
    again.Store(a, start + i * kSize, i * kSize, rstd);
  }
}

// Threads for a row of `vectors`: as few as hold it in registers, since many rows hide latency
// best; more when there are few rows.
dim3 NormBlock(int64_t rows, int64_t vectors) {
  const int64_t items = rows >= 4 * NumSms() ? kNormItems : 1;
  const int64_t threads = (vectors + items * 32 - 1) / (items * 32) * 32;
  if (threads <= 32) return dim3(32, 4);
  return dim3(static_cast<unsigned>(threads < kMaxNormThreads ? threads : kMaxNormThreads));
}

template <class T, int kBytes, bool kResidual>
const Kernel kNormKernel("NormKernel",
                         reinterpret_cast<const void*>(&NormKernel<T, kBytes, kResidual>));

template <class T, int kBytes>
const Kernel& KernelFor(const NormArguments& a) {
  return a.residual ? kNormKernel<T, kBytes, true> : kNormKernel<T, kBytes, false>;
}

}  // namespace

NormArguments MakeNormArguments(const TensorView& x, const Optional& weight, float eps,
                                std::string_view rounding, const TensorView& out) {
  NormArguments a{.dtype = x.dtype, .n = x.dim(-1), .x = x.data, .out = out.data, .eps = eps};
  a.rows = a.n == 0 ? 0 : x.size() / a.n;
  a.before_weight = rounding == "before_weight";
  if (weight && weight->dtype == DType::kF32)
    a.weight_f32 = weight->as<const float>();
  else if (weight)
    a.weight = weight->data;
  return a;
}

Status LaunchNorm(const CudaContext& context, const NormArguments& a) {
  return DispatchDType<kF32, kF16, kBF16>("x", a.dtype, [&]<DType kType>() -> Status {
    using T = DeviceT<kType>;
    constexpr int kElement = sizeof(T);
    const int64_t row_bytes = a.n * kElement;
    const bool aligned = AllAligned16(row_bytes, a.x, a.out, a.weight, a.residual, a.residual_out);
    const dim3 block = NormBlock(a.rows, aligned ? row_bytes / 16 : a.n);
    const Grid grid{(a.rows + block.y - 1) / block.y};
    return Launch(context, aligned ? KernelFor<T, 16>(a) : KernelFor<T, kElement>(a), {grid, block},
                  a);
  });
}

}  // namespace intarsia::cuda
