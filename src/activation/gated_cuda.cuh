// Gated activations on CUDA. Each op's file makes the kernels of its activation.
#pragma once
#include "src/activation/activations.cuh"
#include "src/activation/gated.h"
#include "src/core/cuda/launch.h"
#include "src/core/cuda/vec.cuh"
#include "src/core/dispatch.h"

namespace intarsia::cuda {
namespace {

constexpr int kGatedThreads = 128;
constexpr int kGatedItems = 2;  // vectors a thread has on their way at once

// out[row, i] = round_T(act(gate[row, i])) * up[row, i]. A block does kGatedThreads * kGatedItems
// vectors of one row.
template <class T, int kBytes, template <class> class Activation>
__global__ void __launch_bounds__(kGatedThreads) GatedKernel(GatedRows<T> all, int blocks_per_row) {
  using V = Vec<T, kBytes>;
  const int64_t row = blockIdx.x / blocks_per_row, vectors = all.n / V::kSize;
  const int64_t first =
      static_cast<int64_t>(blockIdx.x % blocks_per_row) * kGatedThreads * kGatedItems + threadIdx.x;
  const V* gate = reinterpret_cast<const V*>(all.gate + row * all.gate_stride);
  const V* up = reinterpret_cast<const V*>(all.up + row * all.up_stride);
  V g[kGatedItems], u[kGatedItems];
#pragma unroll
  for (int k = 0; k < kGatedItems; ++k) {
    const int64_t i = first + k * kGatedThreads;
    if (i < vectors) g[k] = gate[i], u[k] = up[i];
  }
#pragma unroll
  for (int k = 0; k < kGatedItems; ++k) {
    const int64_t i = first + k * kGatedThreads;
    if (i >= vectors) break;
    V product;
#pragma unroll
    for (int j = 0; j < V::kSize; ++j) {
      const float activated = ToFloat(FromFloat<T>(Activation<T>{}(ToFloat(g[k].at[j]))));
      product.at[j] = FromFloat<T>(activated * ToFloat(u[k].at[j]));
    }
    reinterpret_cast<V*>(all.out + row * all.n)[i] = product;
  }
}

template <class T, int kBytes, template <class> class Activation>
const Kernel kGatedKernel("GatedKernel",
                          reinterpret_cast<const void*>(&GatedKernel<T, kBytes, Activation>));

template <template <class> class Activation>
Status LaunchGated(const CudaContext& context, const GatedActivation& op) {
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = DeviceT<kType>;
    constexpr int kElement = sizeof(T);
    const GatedRows<T> all(op);
    // The strides are n or 2n.
    const bool aligned = AllAligned16(all.n * kElement, all.gate, all.up, all.out);
    const int64_t vectors = aligned ? all.n * kElement / 16 : all.n;
    constexpr int kVectors = kGatedThreads * kGatedItems;  // of a block
    const int64_t blocks_per_row = (vectors + kVectors - 1) / kVectors;
    return Launch(
        context, aligned ? kGatedKernel<T, 16, Activation> : kGatedKernel<T, kElement, Activation>,
        {{all.rows * blocks_per_row}, dim3(kGatedThreads)}, all, static_cast<int>(blocks_per_row));
  });
}

}  // namespace
}  // namespace intarsia::cuda
