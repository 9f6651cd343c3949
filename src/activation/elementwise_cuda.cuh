// Elementwise activations on CUDA. Each op's file makes the kernels of its activation.
#pragma once
#include "src/activation/activations.cuh"
#include "src/activation/elementwise.h"
#include "src/core/cuda/launch.h"
#include "src/core/cuda/vec.cuh"
#include "src/core/dispatch.h"

namespace intarsia::cuda {
namespace {

// out[i] = act(x[i]) for i < size, kCount at a time.
template <class T, int kCount, template <class> class Activation>
__global__ void ActivationKernel(const T* x, T* out, int64_t size) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < size / kCount;
       i += stride) {
    Pack<float, kCount> y = ToFloats(reinterpret_cast<const Pack<T, kCount>*>(x)[i]);
#pragma unroll
    for (float& value : y.at) value = Activation<T>{}(value);
    reinterpret_cast<Pack<T, kCount>*>(out)[i] = FromFloats<T>(y);
  }
}

template <class T, int kCount, template <class> class Activation>
const Kernel kActivationKernel(
    "ActivationKernel", reinterpret_cast<const void*>(&ActivationKernel<T, kCount, Activation>));

template <template <class> class Activation>
Status LaunchElementwise(const CudaContext& context, const ElementwiseActivation& op) {
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = DeviceT<kType>;
    constexpr int kCount = kMaxAccessBytes / sizeof(T);
    const int64_t size = op.x.size();
    const auto* x = op.x.as<const T>();
    auto* out = op.out.as<T>();
    const bool packed = AllInPacks<kCount>(size, x, out);
    return Launch(
        context,
        packed ? kActivationKernel<T, kCount, Activation> : kActivationKernel<T, 1, Activation>,
        GridStride(packed ? size / kCount : size), x, out, size);
  });
}

}  // namespace
}  // namespace intarsia::cuda
