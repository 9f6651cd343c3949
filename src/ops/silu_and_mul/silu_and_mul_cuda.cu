#include "src/core/cuda/launch.h"
#include "src/core/cuda/vec.cuh"
#include "src/core/dispatch.h"
#include "src/ops/silu_and_mul/silu_and_mul.h"

namespace intarsia {
namespace {

using cuda::Vec;

constexpr int kThreads = 256;
constexpr int kItems = 2;  // vectors a thread has on their way at once

// out[row, i] = round_T(silu(gate[row, i])) * up[row, i]. Rows of gate and up are input_stride
// apart. A block does kThreads * kItems vectors of one row.
template <class T, int kBytes>
__global__ void __launch_bounds__(kThreads)
    SiluAndMulKernel(const T* gate, const T* up, T* out, int64_t n, int64_t input_stride,
                     int blocks_per_row) {
  using V = Vec<T, kBytes>;
  const int64_t row = blockIdx.x / blocks_per_row, vectors = n / V::kSize;
  const int64_t first =
      static_cast<int64_t>(blockIdx.x % blocks_per_row) * kThreads * kItems + threadIdx.x;
  const V* gate_row = reinterpret_cast<const V*>(gate + row * input_stride);
  const V* up_row = reinterpret_cast<const V*>(up + row * input_stride);
  V g[kItems], u[kItems];
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const int64_t i = first + k * kThreads;
    if (i < vectors) g[k] = gate_row[i], u[k] = up_row[i];
  }
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const int64_t i = first + k * kThreads;
    if (i >= vectors) break;
    V product;
#pragma unroll
    for (int j = 0; j < V::kSize; ++j) {
      const float x = cuda::ToFloat(g[k].at[j]);
      const float e =
          __expf(-fabsf(x));  // never overflows, so a very negative gate is not flushed to 0
      const float silu = cuda::ToFloat(cuda::FromFloat<T>(x * (x < 0.0f ? e : 1.0f) / (1.0f + e)));
      product.at[j] = cuda::FromFloat<T>(silu * cuda::ToFloat(u[k].at[j]));
    }
    reinterpret_cast<V*>(out + row * n)[i] = product;
  }
}

template <class T, int kBytes>
const cuda::Kernel kSiluAndMulKernel("SiluAndMulKernel",
                                     reinterpret_cast<const void*>(&SiluAndMulKernel<T, kBytes>));

}  // namespace

Status SiluAndMul::Run(const CudaContext& context) const {
  return DispatchDType<kF32, kF16, kBF16>("x", x.dtype, [&]<DType kType>() -> Status {
    using T = cuda::DeviceT<kType>;
    constexpr int kElement = sizeof(T);
    const int64_t n = out.dim(-1), rows = n == 0 ? 0 : out.size() / n, input_stride = x.dim(-1);
    const T* gate = x.as<const T>();
    const T* right = up ? up->as<const T>() : gate + n;
    const bool aligned = cuda::AllAligned16(n * kElement, gate, right, out.data);
    const int64_t vectors = aligned ? n * kElement / 16 : n;
    const int64_t blocks_per_row = (vectors + kThreads * kItems - 1) / (kThreads * kItems);
    return Launch(context, aligned ? kSiluAndMulKernel<T, 16> : kSiluAndMulKernel<T, kElement>,
                  {{rows * blocks_per_row}, dim3(kThreads)}, gate, right, out.as<T>(), n,
                  input_stride, static_cast<int>(blocks_per_row));
  });
}

}  // namespace intarsia
