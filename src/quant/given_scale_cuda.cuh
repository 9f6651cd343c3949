// Quantization by given scales on CUDA. Each op's file makes the kernels of its codes.
#pragma once
#include <algorithm>
#include <bit>

#include "src/core/cuda/launch.h"
#include "src/core/cuda/vec.cuh"
#include "src/core/dispatch.h"
#include "src/core/round.h"
#include "src/quant/codes.cuh"
#include "src/quant/given_scale.h"

namespace intarsia::cuda {
namespace {

constexpr int kGivenThreads = 128;
constexpr int kGivenRows = 4;  // of a thread, all on their way at once

template <class T, class Code>
struct GivenArguments {
  const T* x;
  Code* q;
  GivenScales scales;
  int64_t rows, n;
  int blocks_per_row;
  const int32_t* azp;  // [1]; null: none
};

// q[row, i] = round(x[row, i] * (1 / scale)), or round(x / scale) + azp in int8. A block does
// blockDim.x packs of each of blockDim.y * kGivenRows rows; a thread stays in its columns, for it
// may be them that have the scales. The last rows come first: what has just read x left those in
// the L2 cache.
template <class T, class Code, int kCount>
__global__ void __launch_bounds__(kGivenThreads) GivenScaleKernel(GivenArguments<T, Code> a) {
  constexpr bool kDivide = std::is_same_v<Code, int8_t>;
  const unsigned block = gridDim.x - 1 - blockIdx.x;
  const int64_t first = static_cast<int64_t>(block / a.blocks_per_row) * kGivenRows * blockDim.y;
  const int64_t column =
      (static_cast<int64_t>(block % a.blocks_per_row) * blockDim.x + threadIdx.x) * kCount;
  if (column >= a.n) return;
  const auto row = [&](int k) { return first + k * blockDim.y + threadIdx.y; };

  Pack<T, kCount> x[kGivenRows];
#pragma unroll
  for (int k = 0; k < kGivenRows; ++k)
    if (row(k) < a.rows)
      x[k] = *reinterpret_cast<const Pack<T, kCount>*>(a.x + row(k) * a.n + column);

  const int64_t columns = a.scales.columns;
  const bool alike = columns % kCount == 0;  // a pack's columns have one scale
  const auto group = [&](int j) {
    return columns == a.n ? 0 : columns == 1 ? column + j : (column + j) / columns;
  };
  float factors[kCount];
  const auto load_factors = [&](int64_t at_row) {
    const float* scales = a.scales.data + at_row * a.scales.row_stride;
#pragma unroll
    for (int j = 0; j < kCount; ++j)
      factors[j] = j > 0 && alike ? factors[0] : GivenScale(scales[group(j)], kDivide).factor;
  };
  if (row(0) < a.rows) load_factors(row(0));
#pragma unroll
  for (int k = 0; k < kGivenRows; ++k) {
    if (row(k) >= a.rows) break;
    if (k > 0 && a.scales.row_stride != 0) load_factors(row(k));
    Pack<float, kCount> scaled;
#pragma unroll
    for (int j = 0; j < kCount; ++j)
      scaled.at[j] = Scaling{factors[j], kDivide}(ToFloat(x[k].at[j]));
    if constexpr (std::is_same_v<Code, int8_t>) {
      if (a.azp) {
#pragma unroll
        for (float& y : scaled.at) y = Shifted(y, *a.azp);
      }
    }
    *reinterpret_cast<Pack<Code, kCount>*>(a.q + row(k) * a.n + column) = FromFloats<Code>(scaled);
  }
}

template <class T, class Code, int kCount>
const Kernel kGivenScaleKernel("GivenScaleKernel",
                               reinterpret_cast<const void*>(&GivenScaleKernel<T, Code, kCount>));

template <class Code>
Status LaunchGivenScale(const CudaContext& context, const GivenScaleQuant& op,
                        const Optional& azp = {}) {
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = DeviceT<kType>;
    constexpr int kCount = kMaxAccessBytes / sizeof(T);
    const int64_t n = op.x.dim(-1), rows = n == 0 ? 0 : op.x.size() / n;
    if (rows == 0) return {};
    const auto* x = op.x.as<const T>();
    auto* q = op.q.as<Code>();
    const bool packed = AllInPacks<kCount>(n, x, q);
    const int64_t packs = packed ? n / kCount : n;
    const auto width = static_cast<unsigned>(
        std::bit_ceil(static_cast<uint64_t>(std::min<int64_t>(packs, kGivenThreads))));
    const unsigned height = kGivenThreads / width;
    const int64_t blocks_per_row = CeilDiv<int64_t>(packs, width);
    const int64_t rows_per_block = int64_t{height} * kGivenRows;
    const Grid grid{blocks_per_row * CeilDiv<int64_t>(rows, rows_per_block)};
    return Launch(context,
                  packed ? kGivenScaleKernel<T, Code, kCount> : kGivenScaleKernel<T, Code, 1>,
                  {grid, dim3(width, height)},
                  GivenArguments<T, Code>{x, q, GivenScales(op.scale, n), rows, n,
                                          static_cast<int>(blocks_per_row),
                                          azp ? azp->as<const int32_t>() : nullptr});
  });
}

}  // namespace
}  // namespace intarsia::cuda
