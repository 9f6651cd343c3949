// Gated activations on CUDA. Each op's file makes the kernels of its activation.
#pragma once
#include <type_traits>

#include "src/activation/activations.cuh"
#include "src/activation/gated.h"
#include "src/core/cuda/launch.h"
#include "src/core/cuda/ptx.cuh"
#include "src/core/cuda/vec.cuh"
#include "src/core/dispatch.h"
#include "src/core/round.h"
#include "src/quant/scaling.h"

namespace intarsia::cuda {
namespace {

constexpr int kGatedThreads = 128;
constexpr int kGatedItems = 2;  // vectors a thread has on their way at once

// Gate and up of kCount neighbors.
template <class T, int kCount>
struct GateAndUp {
  Pack<T, kCount> gate, up;
};

// Element i * kCount of a row on. Only activations with kMayBeInTurn meet rows where both are.
template <class Activation, class T, int kCount>
__device__ __forceinline__ GateAndUp<T, kCount> LoadBoth(const T* gate, const T* up, bool in_turn,
                                                         int64_t i) {
  GateAndUp<T, kCount> x;
  if constexpr (requires { Activation::kMayBeInTurn; }) {
    if (in_turn) {
      Pack<T, 2 * kCount> both;
      if constexpr (kCount == 1)  // which need not be aligned to pairs
        both.at[0] = gate[2 * i], both.at[1] = gate[2 * i + 1];
      else
        both = reinterpret_cast<const Pack<T, 2 * kCount>*>(gate)[i];
#pragma unroll
      for (int j = 0; j < kCount; ++j)
        x.gate.at[j] = both.at[2 * j], x.up.at[j] = both.at[2 * j + 1];
      return x;
    }
  }
  x.gate = reinterpret_cast<const Pack<T, kCount>*>(gate)[i];
  x.up = reinterpret_cast<const Pack<T, kCount>*>(up)[i];
  return x;
}

// A product whose parts meet otherwise than as round_T(act(gate)) * up says so itself.
template <class Activation, class T, int kCount>
__device__ __forceinline__ Pack<float, kCount> Product(const Activation& act,
                                                       const GateAndUp<T, kCount>& x) {
  Pack<float, kCount> product;
  if constexpr (requires { act(0.0f, 0.0f); }) {
#pragma unroll
    for (int j = 0; j < kCount; ++j)
      product.at[j] = act(ToFloat(x.gate.at[j]), ToFloat(x.up.at[j]));
  } else {
#pragma unroll
    for (int j = 0; j < kCount; ++j) product.at[j] = act(ToFloat(x.gate.at[j]));
    product = Rounded<T>(product);
#pragma unroll
    for (int j = 0; j < kCount; ++j) product.at[j] *= ToFloat(x.up.at[j]);
  }
  return product;
}

// out[row, i] = round_T(act(gate[row, i])) * up[row, i]. A block does kGatedThreads * kGatedItems
// vectors of one row.
// A code is rounded from the rounded product times 1 / scale.
template <class T, class Out, int kCount, template <class> class Activation>
__global__ void __launch_bounds__(kGatedThreads)
    GatedKernel(GatedRows<T, Out> all, Activation<T> act, const float* scale, int blocks_per_row) {
  AwaitPrevious();
  LetNextBegin();
  const int64_t row = blockIdx.x / blocks_per_row, vectors = all.n / kCount;
  const int64_t first =
      static_cast<int64_t>(blockIdx.x % blocks_per_row) * kGatedThreads * kGatedItems + threadIdx.x;
  const T* gate = all.gate + row * all.gate_stride;
  const T* up = all.up + row * all.up_stride;
  constexpr bool kCode = sizeof(Out) == 1;
  GateAndUp<T, kCount> x[kGatedItems];
#pragma unroll
  for (int k = 0; k < kGatedItems; ++k) {
    const int64_t i = first + k * kGatedThreads;
    if (i < vectors) x[k] = LoadBoth<Activation<T>, T, kCount>(gate, up, all.in_turn, i);
  }
  const float factor = kCode ? GivenScale(*scale, false).factor : 1.0f;
#pragma unroll
  for (int k = 0; k < kGatedItems; ++k) {
    const int64_t i = first + k * kGatedThreads;
    if (i >= vectors) break;
    Pack<float, kCount> product = Product(act, x[k]);
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

// Code: the type of a quantized product, which then has a scale; void: T. The attributes are
// Activation's members.
template <template <class> class Activation, class Code = void, class... Attributes>
Status LaunchGated(const CudaContext& context, const GatedActivation& op,
                   const TensorView* scale = nullptr, GatedOrder order = GatedOrder::kGateFirst,
                   Attributes... attributes) {
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = DeviceT<kType>;
    using Out = std::conditional_t<std::is_void_v<Code>, T, Code>;
    constexpr int kCount = kMaxAccessBytes / sizeof(T);
    const GatedRows<T, Out> all(op, order);
    // The strides are n or 2n. What comes in turn is read from the first of both on.
    const bool packed =
        AllInPacks<kCount>(all.n, all.gate, all.in_turn ? all.gate : all.up, all.out);
    const int64_t vectors = packed ? all.n / kCount : all.n;
    constexpr int kVectors = kGatedThreads * kGatedItems;  // of a block
    const int64_t blocks_per_row = CeilDiv<int64_t>(vectors, kVectors);
    return Launch(
        context,
        packed ? kGatedKernel<T, Out, kCount, Activation> : kGatedKernel<T, Out, 1, Activation>,
        {.grid = {all.rows * blocks_per_row},
         .block = dim3(kGatedThreads),
         .overlaps_previous = true},
        all, Activation<T>{attributes...}, scale ? scale->as<const float>() : nullptr,
        static_cast<int>(blocks_per_row));
  });
}

}  // namespace
}  // namespace intarsia::cuda
