#include "ops/row_norm/row_norm.h"
#include "src/core/cuda/launch.h"
#include "src/core/cuda/rows.cuh"
#include "src/core/cuda/vec.cuh"
#include "src/core/dispatch.h"
#include "src/core/round.h"

namespace intarsia {
namespace {

using cuda::Vec;

constexpr int kKept = 4;  // vectors of a row per thread, beyond which a row gets more threads

// out[row] = sqrt(sum over i < n of x[row, i]^2), kBytes at a time. A row a threadIdx.y.
template <class T, int kBytes>
__global__ void RowNormKernel(const T* x, int64_t stride, T* out, int64_t rows, int64_t n) {
  using V = Vec<T, kBytes>;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  float squares = 0.0f;
  if (row < rows) {
    const V* const vectors = reinterpret_cast<const V*>(x + row * stride);
    for (int64_t i = threadIdx.x; i < n / V::kSize; i += blockDim.x) {
      const V vector = vectors[i];
#pragma unroll
      for (int j = 0; j < V::kSize; ++j) {
        const float value = cuda::ToFloat(vector.at[j]);
        squares += value * value;
      }
    }
  }
  // All threads of the block come here, those without a row too.
  squares = cuda::ReduceRow<cuda::Plus>(squares);
  if (row < rows && threadIdx.x == 0) out[row] = cuda::FromFloat<T>(sqrtf(squares));
}

template <class T, int kBytes>
const cuda::Kernel kRowNormKernel("RowNormKernel",
                                  reinterpret_cast<const void*>(&RowNormKernel<T, kBytes>));

}  // namespace

Status RowNorm::Run(const CudaContext& context) const {
  return DispatchDType<kF32, kF16, kBF16>("x", x.dtype, [&]<DType kType>() -> Status {
    using T = cuda::DeviceT<kType>;
    constexpr int kElement = sizeof(T);
    const int64_t rows = out.size(), n = x.dim(-1), stride = RowStride(x);
    const bool aligned = cuda::AllAligned16(n * kElement, x.data) && stride * kElement % 16 == 0;
    const int64_t vectors = aligned ? n * kElement / 16 : n;
    const dim3 block = cuda::RowBlock(*context.device, rows, vectors, kKept);
    const cuda::LaunchConfig config = {.grid = {CeilDiv<int64_t>(rows, block.y)}, .block = block};
    return Launch(context, aligned ? kRowNormKernel<T, 16> : kRowNormKernel<T, kElement>, config,
                  x.as<const T>(), stride, out.as<T>(), rows, n);
  });
}

}  // namespace intarsia
