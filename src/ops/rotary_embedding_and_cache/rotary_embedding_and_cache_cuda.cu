#include <algorithm>

#include "src/cache/cell.cuh"
#include "src/core/cuda/launch.h"
#include "src/core/dispatch.h"
#include "src/core/index_vector.h"
#include "src/core/round.h"
#include "src/core/scale_view.h"
#include "src/ops/rotary_embedding_and_cache/rotary_embedding_and_cache.h"
#include "src/rotary/turn.cuh"

namespace intarsia {
namespace {

using cuda::Copy, cuda::Quantize;

constexpr int kMaxThreads = 512;

struct Arguments {
  const void* qkv;  // T [tokens, num_heads + 2 hk, d]
  int64_t token_stride, head_stride;
  void* query;  // T [tokens, num_heads, d]
  int64_t query_token_stride, query_head_stride;
  cuda::Rotation rotation;
  IndexVector positions, slot_mapping;
  int64_t num_slots;  // of slot_mapping
  CacheView cache;
  ScaleView k_scale, v_scale;
  int num_heads, num_kv_heads, d;
};

// With q, k, v the heads of qkv[token] and R the rotation by positions[token]:
//   query[token] = R q,   K[slot] = R k,   V[slot] = v   for slot = slot_mapping[token].
// A block a token. A head of q or k is the items of turn.cuh, one of v is copied whole.
template <class T, class Cell>
__global__ void __launch_bounds__(kMaxThreads) RotaryAndCacheKernel(Arguments a) {
  using V = typename Cell::In;
  using Stored = typename Cell::Out;
  const int64_t token = blockIdx.x, position = a.positions.At(token),
                slot = token < a.num_slots ? a.slot_mapping.At(token) : -1;
  const int pair_items = cuda::PairItems<V>(a.rotation),
            items = pair_items + (a.d - a.rotation.r) / V::kSize, value_items = a.d / V::kSize;
  const int turned_heads = a.num_heads + a.num_kv_heads, turned_items = turned_heads * items;
  const T* const in = static_cast<const T*>(a.qkv) + token * a.token_stride;
  const auto write = [&](void* pages, const CacheStrides& strides, const ScaleView& scale, int head,
                         int column, V x) {
    const cuda::Place place = cuda::PlaceOf(a.cache, slot);
    if (!place.exists) return;
    auto* const to = static_cast<typename Cell::Element*>(pages) +
                     strides.At(place.layer, place.page, place.slot, head) + column;
    *reinterpret_cast<Stored*>(to) = Cell::Stored(x, scale.At(0, head));
  };
  for (int i = threadIdx.x; i < turned_items + a.num_kv_heads * value_items; i += blockDim.x) {
    if (i >= turned_items) {
      const int head = (i - turned_items) / value_items,
                column = (i - turned_items) % value_items * V::kSize;
      const T* const from = in + (turned_heads + head) * a.head_stride + column;
      write(a.cache.v, a.cache.v_strides, a.v_scale, head, column,
            cuda::LoadHere(reinterpret_cast<const V*>(from)));
      continue;
    }
    const int head = i / items, item = i % items;
    const T* const from = in + head * a.head_stride;
    const auto store = [&](const V& x, int column) {
      if (head >= a.num_heads)
        return write(a.cache.k, a.cache.k_strides, a.k_scale, head - a.num_heads, column, x);
      T* const to = static_cast<T*>(a.query) + token * a.query_token_stride +
                    head * a.query_head_stride + column;
      *reinterpret_cast<V*>(to) = x;
    };
    if (item < pair_items) {
      const auto turned = cuda::Turn<T, V>(a.rotation, from, position, item * V::kSize);
      store(turned.low, turned.low_at);
      store(turned.high, turned.high_at);
    } else {
      const int column = cuda::CopiedAt<V>(a.rotation, item - pair_items);
      store(*reinterpret_cast<const V*>(from + column), column);
    }
  }
}

template <class T, class Cell>
const cuda::Kernel kRotaryAndCacheKernel(
    "RotaryAndCacheKernel", reinterpret_cast<const void*>(&RotaryAndCacheKernel<T, Cell>));

// Whether everything can be read and written kCount elements at a time.
template <class Cell>
bool InCells(const Arguments& a) {
  constexpr int kCount = Cell::kElements;
  const CacheStrides &k = a.cache.k_strides, &v = a.cache.v_strides;
  const int64_t strides[] = {a.token_stride,
                             a.head_stride,
                             a.query_token_stride,
                             a.query_head_stride,
                             k.layer,
                             k.page,
                             k.slot,
                             k.head,
                             v.layer,
                             v.page,
                             v.slot,
                             v.head};
  const auto aligned = [](const void* pointer, size_t bytes) {
    return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
  };
  constexpr size_t kIn = alignof(typename Cell::In), kOut = alignof(typename Cell::Out);
  return a.rotation.InVectors(a.d, kCount) &&
         std::ranges::all_of(strides, [](int64_t stride) { return stride % kCount == 0; }) &&
         aligned(a.qkv, kIn) && aligned(a.query, kIn) && aligned(a.cache.k, kOut) &&
         aligned(a.cache.v, kOut);
}

template <class T, class Wide, class Single>
Status LaunchCells(const CudaContext& context, const Arguments& a, int64_t tokens) {
  const bool wide = InCells<Wide>(a);
  const int64_t elements = (a.num_heads + a.num_kv_heads) * (a.d - a.rotation.r / 2) +
                           a.num_kv_heads * a.d,
                items = elements / (wide ? Wide::kElements : 1);
  const auto threads =
      static_cast<unsigned>(std::clamp<int64_t>(RoundUp<int64_t>(items, 32), 32, kMaxThreads));
  return Launch(context, wide ? kRotaryAndCacheKernel<T, Wide> : kRotaryAndCacheKernel<T, Single>,
                {{tokens}, dim3(threads)}, a);
}

}  // namespace

Status RotaryEmbeddingAndCache::Run(const CudaContext& context) const {
  const int64_t tokens = qkv.dim(0);
  if (qkv.size() == 0) return {};
  Arguments a{.qkv = qkv.data,
              .token_stride = qkv.stride(0),
              .head_stride = qkv.stride(1),
              .query = query.data,
              .query_token_stride = query.stride(0),
              .query_head_stride = query.stride(1),
              .rotation = {cos_sin_cache, rope_dim_offset, is_neox, false},
              .positions = ToIndexVector(positions),
              .slot_mapping = ToIndexVector(slot_mapping),
              .num_slots = slot_mapping.dim(0),
              .cache = {},
              .k_scale = ToScaleView(k_scale),
              .v_scale = ToScaleView(v_scale),
              .num_heads = static_cast<int>(*num_heads),
              .num_kv_heads = static_cast<int>(num_kv_heads()),
              .d = static_cast<int>(qkv.dim(2))};
  INTARSIA_RETURN_IF_ERROR(
      MakeCacheView(layout, kv_cache_dtype, key_cache, value_cache, layer, a.cache));
  return DispatchDType<kF32, kF16, kBF16>("qkv", qkv.dtype, [&]<DType kType>() -> Status {
    using T = cuda::DeviceT<kType>;
    constexpr int kCount = cuda::kMaxAccessBytes / sizeof(T);
    if (a.cache.dtype == kType)
      return LaunchCells<T, Copy<T, kCount>, Copy<T, 1>>(context, a, tokens);
    return DispatchDType<kF8E4M3, kF8E5M2>(
        "key_cache", a.cache.dtype, [&]<DType kCache>() -> Status {
          using F8 = cuda::DeviceT<kCache>;
          return LaunchCells<T, Quantize<T, F8, kCount>, Quantize<T, F8, 1>>(context, a, tokens);
        });
  });
}

}  // namespace intarsia
