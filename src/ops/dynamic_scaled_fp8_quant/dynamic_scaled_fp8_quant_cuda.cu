#include "src/core/round.h"
#include "src/ops/dynamic_scaled_fp8_quant/dynamic_scaled_fp8_quant.h"
#include "src/quant/codes.cuh"
#include "src/quant/given_scale_cuda.cuh"

namespace intarsia {
namespace {

using cuda::Larger;
using cuda::Pack;

constexpr int kThreads = 256;
constexpr int kItems = 4;  // packs a thread has on their way at once
constexpr int kBlocksPerSm = 8;

// *scale = max(*scale, max |x| / 448): in the end the largest of all blocks, since dividing keeps
// the order. Numbers >= 0 are ordered as their bits.
template <class T, int kCount>
__global__ void __launch_bounds__(kThreads)
    LargestKernel(const T* x, RowRule rule, float* scale, int64_t size) {
  const auto* packs = reinterpret_cast<const Pack<T, kCount>*>(x);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads, count = size / kCount;
  float largest = 0.0f;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += kItems * stride) {
    Pack<T, kCount> kept[kItems];
#pragma unroll
    for (int k = 0; k < kItems; ++k)
      if (i + k * stride < count) kept[k] = packs[i + k * stride];
#pragma unroll
    for (int k = 0; k < kItems; ++k)
      if (i + k * stride < count) largest = Larger{}(largest, cuda::LargestAbs(kept[k]));
  }
  largest = cuda::ReduceRow<Larger>(largest);
  if (threadIdx.x == 0)
    atomicMax(reinterpret_cast<int*>(scale), __float_as_int(rule.Of(largest).scale));
}

template <class T, int kCount>
const cuda::Kernel kLargestKernel("LargestKernel",
                                  reinterpret_cast<const void*>(&LargestKernel<T, kCount>));

}  // namespace

Status DynamicScaledFp8Quant::Run(const CudaContext& context) const {
  INTARSIA_RETURN_IF_ERROR(cuda::ToStatus(
      cudaMemsetAsync(scale.data, 0, sizeof(float), static_cast<cudaStream_t>(context.stream)),
      "cudaMemsetAsync"));
  INTARSIA_RETURN_IF_ERROR(
      (DispatchDType<kF32, kF16, kBF16>("x", x.dtype, [&]<DType kType>() -> Status {
        using T = cuda::DeviceT<kType>;
        constexpr int kCount = cuda::kMaxAccessBytes / sizeof(T);
        const int64_t size = x.size();
        const bool packed = cuda::AllInPacks<kCount>(size, x.as<const T>());
        constexpr int64_t kOfBlock = kThreads * kItems;
        const int64_t blocks = CeilDiv<int64_t>(packed ? size / kCount : size, kOfBlock);
        const int64_t resident = kBlocksPerSm * context.device->sms;
        return Launch(context, packed ? kLargestKernel<T, kCount> : kLargestKernel<T, 1>,
                      {{std::min(blocks, resident)}, dim3(kThreads)}, x.as<const T>(), kRule,
                      scale.as<float>(), size);
      })));
  // A row at least: a scalar is one of one element.
  TensorView rows = x;
  if (rows.rank == 0) rows.rank = 1, rows.dims[0] = rows.strides[0] = 1;
  return cuda::LaunchGivenScale<__nv_fp8_e4m3>(context, {rows, scale, q});
}

}  // namespace intarsia
