#include "src/core/cuda/launch.h"
#include "src/core/cuda/rows.cuh"
#include "src/core/dispatch.h"
#include "src/core/round.h"
#include "src/ops/dynamic_scaled_int8_azp_quant/dynamic_scaled_int8_azp_quant.h"
#include "src/quant/codes.cuh"

namespace intarsia {

namespace {

using cuda::Pack;

constexpr int kItems = 4;  // packs of a row that a thread keeps

// Of all numbers but NaN. Each has shared memory of its own in ReduceRow.
struct Most {
  static constexpr float kNeutral = -INFINITY;
  __device__ __forceinline__ float operator()(float x, float y) const { return fmaxf(x, y); }
};
struct Least {
  static constexpr float kNeutral = INFINITY;
  __device__ __forceinline__ float operator()(float x, float y) const { return fminf(x, y); }
};

template <class T>
struct Arguments {
  const T* x;     // [rows, n]
  int8_t* q;      // [rows, n]
  float* scales;  // [rows]
  int32_t* azps;  // [rows]
  int64_t rows, n;
};

// A row a threadIdx.y, as in RowQuantKernel.
template <class T, int kCount>
__global__ void __launch_bounds__(cuda::kMaxRowThreads) AzpKernel(Arguments<T> a) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int64_t packs = row < a.rows ? a.n / kCount : 0;
  const auto* x = reinterpret_cast<const Pack<T, kCount>*>(a.x + row * a.n);
  auto* q = reinterpret_cast<Pack<int8_t, kCount>*>(a.q + row * a.n);
  const auto at = [&](int k) { return threadIdx.x + static_cast<int64_t>(k) * blockDim.x; };
  Pack<T, kCount> kept[kItems];
#pragma unroll
  for (int k = 0; k < kItems; ++k)
    if (at(k) < packs) kept[k] = x[at(k)];
  float least = INFINITY, most = -INFINITY;
  const auto widen = [&](const Pack<T, kCount>& pack) {
#pragma unroll
    for (const T& number : pack.at) {
      least = Least{}(least, cuda::ToFloat(number));
      most = Most{}(most, cuda::ToFloat(number));
    }
  };
#pragma unroll
  for (int k = 0; k < kItems; ++k)
    if (at(k) < packs) widen(kept[k]);
  for (int64_t i = at(kItems); i < packs; i += blockDim.x) widen(x[i]);
  least = cuda::ReduceRow<Least>(least);
  most = cuda::ReduceRow<Most>(most);

  const float scale = least < most ? (most - least) / 255.0f : 0.0f;
  const int32_t azp =
      scale == 0.0f ? 0 : static_cast<int32_t>(cuda::Shifted(-128.0f - least / scale, 0));
  if (threadIdx.x == 0 && row < a.rows) a.scales[row] = scale, a.azps[row] = azp;
  const auto codes = [&](const Pack<T, kCount>& pack) {
    Pack<float, kCount> scaled = cuda::ToFloats(pack);
#pragma unroll
    for (float& y : scaled.at) y = cuda::Shifted(scale == 0.0f ? 0.0f : y / scale, azp);
    return cuda::FromFloats<int8_t>(scaled);
  };
#pragma unroll
  for (int k = 0; k < kItems; ++k)
    if (at(k) < packs) q[at(k)] = codes(kept[k]);
  for (int64_t i = at(kItems); i < packs; i += blockDim.x) q[i] = codes(x[i]);
}

template <class T, int kCount>
const cuda::Kernel kAzpKernel("AzpKernel", reinterpret_cast<const void*>(&AzpKernel<T, kCount>));

}  // namespace

Status DynamicScaledInt8AzpQuant::Run(const CudaContext& context) const {
  return DispatchDType<kF32, kF16, kBF16>("x", x.dtype, [&]<DType kType>() -> Status {
    using T = cuda::DeviceT<kType>;
    constexpr int kCount = cuda::kMaxAccessBytes / sizeof(T);
    const Arguments<T> a{.x = x.as<const T>(),
                         .q = q.as<int8_t>(),
                         .scales = scale.as<float>(),
                         .azps = azp.as<int32_t>(),
                         .rows = scale.size(),
                         .n = x.dim(-1)};
    const bool packed = cuda::AllInPacks<kCount>(a.n, a.x, a.q);
    const dim3 block = cuda::RowBlock(*context.device, a.rows, packed ? a.n / kCount : a.n, kItems);
    return Launch(context, packed ? kAzpKernel<T, kCount> : kAzpKernel<T, 1>,
                  {{CeilDiv<int64_t>(a.rows, block.y)}, block}, a);
  });
}

}  // namespace intarsia
