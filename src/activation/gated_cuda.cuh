// Gated activations on CUDA. Each op's file makes the kernels of its activation.
#pragma once
#include <type_traits>

#include "src/activation/activations.cuh"
#include "src/activation/gated.h"
#include "src/core/cuda/launch.h"
#include "src/core/cuda/vec.cuh"
#include "src/core/dispatch.h"
#include "src/core/round.h"
#include "src/quant/scaling.h"

namespace intarsia::cuda {
namespace {

constexpr int kGatedThreads = 128;
constexpr int kGatedItems = 2;  // vectors a thread has on their way at once

// out[row, i] = round_T(act(gate[row, i])) * up[row, i]. A block does kGatedThreads * kGatedItems
// vectors of one row.
// A code is rounded from the rounded product times 1 / scale.
template <class T, class Out, int kCount, template <class> class Activation>
__global__ void __launch_bounds__(kGatedThreads)
    GatedKernel(GatedRows<T, Out> all, const float* scale, int blocks_per_row) {
  using V = Pack<T, kCount>;
  const int64_t row = blockIdx.x / blocks_per_row, vectors = all.n / kCount;
  const int64_t first =
      static_cast<int64_t>(blockIdx.x % blocks_per_row) * kGatedThreads * kGatedItems + threadIdx.x;
  const V* gate = reinterpret_cast<const V*>(all.gate + row * all.gate_stride);
  const V* up = reinterpret_cast<const V*>(all.up + row * all.up_stride);
  constexpr bool kCode = sizeof(Out) == 1;
  V g[kGatedItems], u[kGatedItems];
#pragma unroll
  for (int k = 0; k < kGatedItems; ++k) {
    const int64_t i = first + k * kGatedThreads;
    if (i < vectors) g[k] = gate[i], u[k] = up[i];
  }
  const float factor = kCode ? GivenScale(*scale, false).factor : 1.0f;
#pragma unroll
  for (int k = 0; k < kGatedItems; ++k) {
    const int64_t i = first + k * kGatedThreads;
    if (i >= vectors) break;
    Pack<float, kCount> product;
#pragma unroll
    for (int j = 0; j < kCount; ++j) product.at[j] = Activation<T>{}(ToFloat(g[k].at[j]));
    product = Rounded<T>(product);
#pragma unroll
    for (int j = 0; j < kCount; ++j) product.at[j] *= ToFloat(u[k].at[j]);
    if constexpr (kCode) {
      product = Rounded<T>(product);
#pragma unroll
      for (float& x : product.at) x *= factor;
    }
    reinterpret_cast<Pack<Out, kCount>*>(all.out + row * all.n)[i] = FromFloats<Out>(product);
  }
}

template <class T, class Out, int kCount, template <class> class Activation>
const Kernel kGatedKernel("GatedKernel",
                          reinterpret_cast<const void*>(&GatedKernel<T, Out, kCount, Activation>));

// Code: the type of a quantised product, which then has a scale; void: T.
template <template <class> class Activation, class Code = void>
Status LaunchGated(const CudaContext& context, const GatedActivation& op,
                   const TensorView* scale = nullptr) {
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = DeviceT<kType>;
    using Out = std::conditional_t<std::is_void_v<Code>, T, Code>;
    constexpr int kCount = kMaxAccessBytes / sizeof(T);
    const GatedRows<T, Out> all(op);
    // The strides are n or 2n.
    const bool packed = AllInPacks<kCount>(all.n, all.gate, all.up, all.out);
    const int64_t vectors = packed ? all.n / kCount : all.n;
    constexpr int kVectors = kGatedThreads * kGatedItems;  // of a block
    const int64_t blocks_per_row = CeilDiv<int64_t>(vectors, kVectors);
    return Launch(
        context,
        packed ? kGatedKernel<T, Out, kCount, Activation> : kGatedKernel<T, Out, 1, Activation>,
        {{all.rows * blocks_per_row}, dim3(kGatedThreads)}, all,
        scale ? scale->as<const float>() : nullptr, static_cast<int>(blocks_per_row));
  });
}

}  // namespace
}  // namespace intarsia::cuda
