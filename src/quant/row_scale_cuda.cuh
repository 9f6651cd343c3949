// Quantization of rows by their own scales on CUDA. Each op's file makes the kernels of its codes.
#pragma once
#include "src/core/cuda/launch.h"
#include "src/core/cuda/rows.cuh"
#include "src/core/dispatch.h"
#include "src/core/round.h"
#include "src/quant/codes.cuh"
#include "src/quant/row_scale.h"

namespace intarsia::cuda {
namespace {

constexpr int kRowQuantItems = 4;

template <class T, class Code>
struct RowQuantArguments {
  const T* x;     // [rows, n]
  Code* q;        // [rows, n]
  float* scales;  // [rows]
  RowRule rule;
  int64_t rows, n;
};

// A row a threadIdx.y; its first kRowQuantItems packs a thread stay in registers between the search
// for the largest and the quantization. What a longer row has beyond that is read again.
template <class T, class Code, int kCount>
__global__ void __launch_bounds__(kMaxRowThreads) RowQuantKernel(RowQuantArguments<T, Code> a) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int64_t packs = row < a.rows ? a.n / kCount : 0;
  const auto* x = reinterpret_cast<const Pack<T, kCount>*>(a.x + row * a.n);
  auto* q = reinterpret_cast<Pack<Code, kCount>*>(a.q + row * a.n);
  const auto at = [&](int k) { return threadIdx.x + static_cast<int64_t>(k) * blockDim.x; };
  Pack<T, kCount> kept[kRowQuantItems];
#pragma unroll
  for (int k = 0; k < kRowQuantItems; ++k)
    if (at(k) < packs) kept[k] = x[at(k)];
  float largest = 0.0f;
#pragma unroll
  for (int k = 0; k < kRowQuantItems; ++k)
    if (at(k) < packs) largest = Larger{}(largest, LargestAbs(kept[k]));
  for (int64_t i = at(kRowQuantItems); i < packs; i += blockDim.x)
    largest = Larger{}(largest, LargestAbs(x[i]));
  largest = ReduceRow<Larger>(largest);
  const auto of_row = a.rule.Of(largest);
  const RowScaling scaling(of_row.scaling, largest);
  if (threadIdx.x == 0 && row < a.rows) a.scales[row] = of_row.scale;
#pragma unroll
  for (int k = 0; k < kRowQuantItems; ++k)
    if (at(k) < packs) q[at(k)] = Quantized<Code>(kept[k], scaling);
  for (int64_t i = at(kRowQuantItems); i < packs; i += blockDim.x)
    q[i] = Quantized<Code>(x[i], scaling);
}

template <class T, class Code, int kCount>
const Kernel kRowQuantKernel("RowQuantKernel",
                             reinterpret_cast<const void*>(&RowQuantKernel<T, Code, kCount>));

template <class Code>
Status LaunchRowQuant(const CudaContext& context, const RowQuant& op) {
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = DeviceT<kType>;
    constexpr int kCount = kMaxAccessBytes / sizeof(T);
    const RowQuantArguments<T, Code> a{.x = op.x.as<const T>(),
                                       .q = op.q.as<Code>(),
                                       .scales = op.scale.as<float>(),
                                       .rule = op.rule,
                                       .rows = op.scale.size(),
                                       .n = op.n};
    const bool packed = AllInPacks<kCount>(a.n, a.x, a.q);
    const dim3 block =
        RowBlock(*context.device, a.rows, packed ? a.n / kCount : a.n, kRowQuantItems);
    return Launch(context, packed ? kRowQuantKernel<T, Code, kCount> : kRowQuantKernel<T, Code, 1>,
                  {{CeilDiv<int64_t>(a.rows, block.y)}, block}, a);
  });
}

}  // namespace
}  // namespace intarsia::cuda
