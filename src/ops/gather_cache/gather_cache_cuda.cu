#include <algorithm>

#include "src/cache/cell.cuh"
#include "src/core/cuda/launch.h"
#include "src/core/dispatch.h"
#include "src/core/round.h"
#include "src/ops/gather_cache/gather_cache.h"

namespace intarsia {
namespace {

using cuda::Copy, cuda::Dequantize;

constexpr int kMaxThreads = 256;

struct Arguments {
  GatherPlaces places;
  const void* cache;
  void* out;
  const float* scale;  // null: 1
  int64_t row_cells;   // n
};

// A block a row, or a part of one: out[row] = cache[slot of the row].
template <class Cell>
__global__ void __launch_bounds__(kMaxThreads) GatherKernel(Arguments a) {
  const int64_t row = blockIdx.x, column = int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (column >= a.row_cells) return;
  const int64_t slot = a.places.SlotOf(row);
  if (slot < 0) return;
  const auto cell = static_cast<const typename Cell::In*>(a.cache)[slot * a.row_cells + column];
  static_cast<typename Cell::Out*>(a.out)[row * a.row_cells + column] =
      Cell::Stored(cell, a.scale ? *a.scale : 1.0f);
}

template <class Cell>
const cuda::Kernel kGatherKernel("GatherKernel",
                                 reinterpret_cast<const void*>(&GatherKernel<Cell>));

// Wide cells where everything is aligned, else single elements.
template <class Wide, class Single>
Status Gather(const CudaContext& context, Arguments a, int64_t rows) {
  const bool wide = a.row_cells % Wide::kElements == 0 &&
                    reinterpret_cast<uintptr_t>(a.cache) % alignof(typename Wide::In) == 0 &&
                    reinterpret_cast<uintptr_t>(a.out) % alignof(typename Wide::Out) == 0;
  if (wide) a.row_cells /= Wide::kElements;
  const auto threads = std::clamp<int64_t>(RoundUp<int64_t>(a.row_cells, 32), 32, kMaxThreads);
  return Launch(context, wide ? kGatherKernel<Wide> : kGatherKernel<Single>,
                {{rows, CeilDiv(a.row_cells, threads)}, dim3(static_cast<unsigned>(threads))}, a);
}

template <class T>
Status GatherAsStored(const CudaContext& context, const Arguments& a, int64_t rows) {
  return Gather<Copy<T, cuda::kMaxAccessBytes / sizeof(T)>, Copy<T, 1>>(context, a, rows);
}

}  // namespace

Status GatherCache::Run(const CudaContext& context) const {
  const Arguments a{.places = GatherPlaces(*this),
                    .cache = cache.data,
                    .out = out.data,
                    .scale = scale ? scale->as<const float>() : nullptr,
                    .row_cells = dst.dim(1)};
  const int64_t rows = dst.dim(0);
  if (!converts()) {
    switch (Bytes(dst.dtype)) {
      case 4:
        return GatherAsStored<uint32_t>(context, a, rows);
      case 2:
        return GatherAsStored<uint16_t>(context, a, rows);
      default:
        return GatherAsStored<uint8_t>(context, a, rows);
    }
  }
  return DispatchDType<kF8E4M3, kF8E5M2>("cache", stored(), [&]<DType kCache>() -> Status {
    return DispatchDType<kF32, kF16, kBF16>("dst", dst.dtype, [&]<DType kType>() -> Status {
      using F8 = cuda::DeviceT<kCache>;
      using T = cuda::DeviceT<kType>;
      constexpr int kCount = cuda::kMaxAccessBytes / sizeof(T);
      return Gather<Dequantize<F8, T, kCount>, Dequantize<F8, T, 1>>(context, a, rows);
    });
  });
}

}  // namespace intarsia
