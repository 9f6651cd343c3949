#include "src/core/cuda/launch.h"
#include "src/core/cuda/vec.cuh"
#include "src/core/dispatch.h"
#include "src/ops/simple_add/simple_add.h"

namespace intarsia {
namespace {

using cuda::Vec;

// out[i] = a[i] + b[i] for i < size, kBytes at a time.
template <class T, int kBytes>
__global__ void AddKernel(const T* a, const T* b, T* out, int64_t size) {
  using V = Vec<T, kBytes>;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < size / V::kSize;
       i += stride) {
    const V x = reinterpret_cast<const V*>(a)[i], y = reinterpret_cast<const V*>(b)[i];
    V sum;
#pragma unroll
    for (int j = 0; j < V::kSize; ++j)
      sum.at[j] = cuda::FromFloat<T>(cuda::ToFloat(x.at[j]) + cuda::ToFloat(y.at[j]));
    reinterpret_cast<V*>(out)[i] = sum;
  }
}

template <class T, int kBytes>
const cuda::Kernel kAddKernel("AddKernel", reinterpret_cast<const void*>(&AddKernel<T, kBytes>));

}  // namespace

Status SimpleAdd::Run(const CudaContext& context) const {
  return DispatchDType<kF32, kF16, kBF16>("a", a.dtype, [&]<DType kType>() -> Status {
    using T = cuda::DeviceT<kType>;
    constexpr int kElement = sizeof(T);
    const int64_t size = a.size();
    const bool aligned = cuda::AllAligned16(size * kElement, a.data, b.data, out.data);
    const cuda::LaunchConfig config = cuda::GridStride(aligned ? size * kElement / 16 : size);
    return Launch(context, aligned ? kAddKernel<T, 16> : kAddKernel<T, kElement>, config,
                  a.as<const T>(), b.as<const T>(), out.as<T>(), size);
  });
}

}  // namespace intarsia
