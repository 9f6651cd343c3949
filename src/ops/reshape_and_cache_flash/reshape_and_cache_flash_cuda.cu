#include "src/cache/cell.cuh"
#include "src/core/cuda/launch.h"
#include "src/core/dispatch.h"
#include "src/core/index_vector.h"
#include "src/core/round.h"
#include "src/core/scale_view.h"
#include "src/ops/reshape_and_cache_flash/reshape_and_cache_flash.h"

namespace intarsia {
namespace {

using cuda::Copy, cuda::Quantize;

constexpr int kMaxThreads = 512;

// A copy needs no dtype, but its size.
template <int kBytes>
using Bits = std::conditional_t<kBytes == 4, uint32_t, uint16_t>;

// Of K and of V. Strides and sizes in cells, but for the cache's.
struct Arguments {
  const void* inputs[2];  // key and value, [t, hk, d]
  int64_t token_stride[2], head_stride[2];
  void* pages[2];
  CacheStrides strides[2] = {};
  ScaleView scales[2];
  CacheView cache;
  IndexVector slot_mapping;
  int64_t head_cells;      // d
  bool alternate = false;  // V of a head lies right behind its K
};

// pages[slot / s, slot % s, head] = input[token, head] for slot = slot_mapping[token]. A thread a
// cell: x is its place in the head, y the head of K or of V in the order in which they lie in the
// cache.
template <class Cell>
__global__ void __launch_bounds__(kMaxThreads) CacheWriteKernel(Arguments a) {
  const CacheView& cache = a.cache;
  const int64_t token = blockIdx.x, column = int64_t{blockIdx.z} * blockDim.x + threadIdx.x;
  const int row = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y),
            heads = static_cast<int>(cache.num_kv_heads);
  if (row >= 2 * heads || column >= a.head_cells) return;
  const int which = a.alternate ? row % 2 : row >= heads,
            head = a.alternate ? row / 2 : row - which * heads;
  // Loaded before the slot is known, so that the loads wait together.
  const auto cell =
      cuda::LoadHere(static_cast<const typename Cell::In*>(a.inputs[which]) +
                     token * a.token_stride[which] + head * a.head_stride[which] + column);
  const float* const scales = a.scales[which].data;
  const float scale = scales ? __ldca(scales + head * a.scales[which].head_stride) : 1.0f;
  const cuda::Place place = cuda::PlaceOf(cache, a.slot_mapping.At(token));
  const int64_t at = a.strides[which].At(place.layer, place.page, place.slot, head);
  // No early return: the loads would be put off behind it.
  if (place.exists)
    static_cast<typename Cell::Out*>(a.pages[which])[at + column] = Cell::Stored(cell, scale);
}

template <class Cell>
const cuda::Kernel kCacheWriteKernel("CacheWriteKernel",
                                     reinterpret_cast<const void*>(&CacheWriteKernel<Cell>));

// Strides and sizes counted in cells; false if they are not whole, or not aligned.
template <class Cell>
bool CountCells(Arguments& a) {
  bool whole = true;
  const auto divide = [&](int64_t& count) {
    whole &= count % Cell::kElements == 0;
    count /= Cell::kElements;
  };
  divide(a.head_cells);
  for (const int which : {0, 1}) {
    divide(a.token_stride[which]);
    divide(a.head_stride[which]);
    CacheStrides& strides = a.strides[which];
    for (int64_t* count : {&strides.layer, &strides.page, &strides.slot, &strides.head})
      divide(*count);
    whole &= reinterpret_cast<uintptr_t>(a.inputs[which]) % alignof(typename Cell::In) == 0;
    whole &= reinterpret_cast<uintptr_t>(a.pages[which]) % alignof(typename Cell::Out) == 0;
  }
  return whole;
}

// Wide cells where everything is aligned, else single elements.
template <class Wide, class Single>
Status Write(const CudaContext& context, const Arguments& elements, int64_t tokens) {
  Arguments arguments = elements;
  const bool wide = CountCells<Wide>(arguments);
  if (!wide) arguments = elements;
  const int64_t rows = 2 * arguments.cache.num_kv_heads, columns = arguments.head_cells;
  if (rows * columns == 0) return {};
  const int64_t x = std::min<int64_t>(columns, kMaxThreads), y = std::min(rows, kMaxThreads / x);
  return Launch(context, wide ? kCacheWriteKernel<Wide> : kCacheWriteKernel<Single>,
                {{tokens, CeilDiv<int64_t>(rows, y), CeilDiv<int64_t>(columns, x)},
                 dim3(static_cast<unsigned>(x), static_cast<unsigned>(y))},
                arguments);
}

}  // namespace

Status ReshapeAndCacheFlash::Run(const CudaContext& context) const {
  CacheView cache;
  INTARSIA_RETURN_IF_ERROR(Cache(cache));
  const Arguments elements{
      .inputs = {key.data, value.data},
      .token_stride = {key.stride(0), value.stride(0)},
      .head_stride = {key.stride(1), value.stride(1)},
      .pages = {cache.k, cache.v},
      .strides = {cache.k_strides, cache.v_strides},
      .scales = {ToScaleView(k_scale), ToScaleView(v_scale)},
      .cache = cache,
      .slot_mapping = ToIndexVector(slot_mapping),
      .head_cells = cache.head_dim,
      .alternate = reinterpret_cast<uintptr_t>(cache.v) ==
                   reinterpret_cast<uintptr_t>(cache.k) +
                       static_cast<uintptr_t>(cache.head_dim * Bytes(cache.dtype))};
  const int64_t tokens = slot_mapping.dim(0);
  return DispatchDType<kF32, kF16, kBF16>("key", key.dtype, [&]<DType kKey>() -> Status {
    using T = cuda::DeviceT<kKey>;
    constexpr int kCount = cuda::kMaxAccessBytes / sizeof(T);
    if (cache.dtype == kKey)
      return Write<Copy<Bits<sizeof(T)>, kCount>, Copy<Bits<sizeof(T)>, 1>>(context, elements,
                                                                            tokens);
    return DispatchDType<kF8E4M3, kF8E5M2>("key_cache", cache.dtype, [&]<DType kCache>() -> Status {
      using F8 = cuda::DeviceT<kCache>;
      return Write<Quantize<T, F8, kCount>, Quantize<T, F8, 1>>(context, elements, tokens);
    });
  });
}

}  // namespace intarsia
