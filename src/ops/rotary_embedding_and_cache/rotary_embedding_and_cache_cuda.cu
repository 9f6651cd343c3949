#include <algorithm>

#include "src/cache/cell.cuh"
#include "src/core/cuda/launch.h"
#include "src/core/cuda/ptx.cuh"
#include "src/core/dispatch.h"
#include "src/core/index_vector.h"
#include "src/core/round.h"
#include "src/core/scale_view.h"
#include "src/ops/rotary_embedding_and_cache/rotary_embedding_and_cache.h"
#include "src/rotary/normed_head.cuh"

namespace intarsia {
namespace {

using cuda::Copy, cuda::Quantize, cuda::kHeadWarps;

constexpr int kMaxThreads = 512;
template <class T>
constexpr int kWide = cuda::kMaxAccessBytes / sizeof(T);

struct Arguments {
  int64_t tokens;
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
  cuda::HeadNorms norms;  // if q and k are normed
};

// Where the elements of a token's heads go: queries into their array, K and V into its slot.
template <class T, class Cell>
class Destination {
 public:
  using V = typename Cell::In;

  __device__ Destination(const Arguments& a, int64_t token)
      : a_(a), token_(token), slot_(token < a.num_slots ? a.slot_mapping.At(token) : -1) {}

  __device__ __forceinline__ void Store(int head, int column, const V& x) const {
    if (head >= a_.num_heads + a_.num_kv_heads)
      Write(a_.cache.v, a_.cache.v_strides, a_.v_scale, head - a_.num_heads - a_.num_kv_heads,
            column, x);
    else if (head >= a_.num_heads)
      Write(a_.cache.k, a_.cache.k_strides, a_.k_scale, head - a_.num_heads, column, x);
    else
      *reinterpret_cast<V*>(static_cast<T*>(a_.query) + token_ * a_.query_token_stride +
                            head * a_.query_head_stride + column) = x;
  }

 private:
  __device__ __forceinline__ void Write(void* pages, const CacheStrides& strides,
                                        const ScaleView& scale, int head, int column,
                                        const V& x) const {
    const cuda::Place place = cuda::PlaceOf(a_.cache, slot_);
    if (!place.exists) return;
    auto* const to = static_cast<typename Cell::Element*>(pages) +
                     strides.At(place.layer, place.page, place.slot, head) + column;
    *reinterpret_cast<typename Cell::Out*>(to) = Cell::Stored(x, scale.At(0, head));
  }

  const Arguments& a_;
  const int64_t token_, slot_;
};

// With q, k, v the heads of qkv[token] and R the rotation by positions[token]:
//   query[token] = R q,   K[slot] = R k,   V[slot] = v   for slot = slot_mapping[token].
// A block a token. A head of q or k is the items of turn.cuh, one of v is copied whole.
template <class T, class Cell>
__global__ void __launch_bounds__(kMaxThreads) RotaryAndCacheKernel(Arguments a) {
  using V = typename Cell::In;
  cuda::AwaitPrevious();
  cuda::LetNextBegin();
  const int64_t token = blockIdx.x, position = a.positions.At(token);
  const Destination<T, Cell> destination(a, token);
  const int pair_items = cuda::PairItems<V>(a.rotation),
            items = pair_items + (a.d - a.rotation.r) / V::kSize, value_items = a.d / V::kSize;
  const int turned_heads = a.num_heads + a.num_kv_heads, turned_items = turned_heads * items;
  const T* const in = static_cast<const T*>(a.qkv) + token * a.token_stride;
  for (int i = threadIdx.x; i < turned_items + a.num_kv_heads * value_items; i += blockDim.x) {
    if (i >= turned_items) {
      const int head = turned_heads + (i - turned_items) / value_items,
                column = (i - turned_items) % value_items * V::kSize;
      const T* const from = in + head * a.head_stride + column;
      destination.Store(head, column, cuda::LoadHere(reinterpret_cast<const V*>(from)));
      continue;
    }
    const int head = i / items, item = i % items;
    const T* const from = in + head * a.head_stride;
    if (item < pair_items) {
      const auto turned = cuda::Turn<T, V>(a.rotation, from, position, item * V::kSize);
      destination.Store(head, turned.low_at, turned.low);
      destination.Store(head, turned.high_at, turned.high);
    } else {
      const int column = cuda::CopiedAt<V>(a.rotation, item - pair_items);
      destination.Store(head, column, *reinterpret_cast<const V*>(from + column));
    }
  }
}

// The same of normed q and k (normed_head.cuh), turned in f32 and rounded once. A warp a head.
template <class T, class Cell>
__global__ void __launch_bounds__(kHeadWarps * 32) NormedRotaryAndCacheKernel(Arguments a) {
  using V = typename Cell::In;
  extern __shared__ float4 normed_heads[];  // [kHeadWarps, d] f32
  cuda::AwaitPrevious();
  cuda::LetNextBegin();
  const auto [token, head] = cuda::HeadOfWarp(a.num_heads + 2 * a.num_kv_heads);
  const int lane = threadIdx.x % 32;
  if (token >= a.tokens) return;
  const Destination<T, Cell> destination(a, token);
  const T* const in = static_cast<const T*>(a.qkv) + token * a.token_stride + head * a.head_stride;
  if (head >= a.num_heads + a.num_kv_heads) {
    for (int column = lane * V::kSize; column < a.d; column += 32 * V::kSize)
      destination.Store(head, column, *reinterpret_cast<const V*>(in + column));
    return;
  }

  float* const normed = reinterpret_cast<float*>(normed_heads) + threadIdx.x / 32 * a.d;
  cuda::NormHead<T, V::kSize>(a.norms, head >= a.num_heads, in, a.d, normed);
  cuda::TurnNormed<T, V::kSize>(
      a.rotation, a.positions.At(token), a.d, normed,
      [&](int column, const V& x) { destination.Store(head, column, x); });
}

// The same of heads that a warp holds in registers; a cell is a lane's half.
template <class T, class Cell>
__global__ void __launch_bounds__(kHeadWarps * 32) HeldRotaryAndCacheKernel(Arguments a) {
  using Held = cuda::HeldHead<T, Cell::kElements>;
  cuda::AwaitPrevious();
  cuda::LetNextBegin();
  const auto [token, head] = cuda::HeadOfWarp(a.num_heads + 2 * a.num_kv_heads);
  if (token >= a.tokens) return;
  Held held(static_cast<const T*>(a.qkv) + token * a.token_stride + head * a.head_stride);
  if (head < a.num_heads + a.num_kv_heads)
    held.NormAndTurn(a.norms, head >= a.num_heads, a.rotation, a.positions.At(token));
  const Destination<T, Cell> destination(a, token);
  destination.Store(head, Held::At(), held.low);
  destination.Store(head, Held::At() + Held::kHalf, held.high);
}

constexpr int kMaxShared = kHeadWarps * kMaxNormedHeadDim * int{sizeof(float)};

template <class T, class Cell>
const cuda::Kernel kRotaryAndCacheKernel(
    "RotaryAndCacheKernel", reinterpret_cast<const void*>(&RotaryAndCacheKernel<T, Cell>));

template <class T, class Cell>
const cuda::Kernel kNormedRotaryAndCacheKernel(
    "NormedRotaryAndCacheKernel",
    reinterpret_cast<const void*>(&NormedRotaryAndCacheKernel<T, Cell>), kMaxShared);

template <class T, class Cell>
const cuda::Kernel kHeldRotaryAndCacheKernel(
    "HeldRotaryAndCacheKernel", reinterpret_cast<const void*>(&HeldRotaryAndCacheKernel<T, Cell>));

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

// With norms. Cells<n>: cells of n elements.
template <class T, template <int> class Cells>
Status LaunchNormed(const CudaContext& context, const Arguments& a, bool wide) {
  const int64_t heads = a.tokens * (a.num_heads + 2 * a.num_kv_heads);
  const cuda::LaunchConfig launch{.grid = {CeilDiv<int64_t>(heads, kHeadWarps)},
                                  .block = dim3(kHeadWarps * 32),
                                  .overlaps_previous = true};
  if constexpr (sizeof(T) == 2) {
    if (const int pairs = wide ? cuda::PairsHeld(a.rotation, a.d) : 0)
      return Launch(context,
                    pairs == 2 ? kHeldRotaryAndCacheKernel<T, Cells<2>>
                               : kHeldRotaryAndCacheKernel<T, Cells<4>>,
                    launch, a);
  }
  cuda::LaunchConfig with_memory = launch;
  with_memory.shared_bytes = kHeadWarps * a.d * int{sizeof(float)};
  return Launch(context,
                wide ? kNormedRotaryAndCacheKernel<T, Cells<kWide<T>>>
                     : kNormedRotaryAndCacheKernel<T, Cells<1>>,
                with_memory, a);
}

template <class T, template <int> class Cells>
Status LaunchCells(const CudaContext& context, const Arguments& a) {
  const bool wide = InCells<Cells<kWide<T>>>(a);
  if (a.norms.q_weight) return LaunchNormed<T, Cells>(context, a, wide);
  const int64_t elements = (a.num_heads + a.num_kv_heads) * (a.d - a.rotation.r / 2) +
                           a.num_kv_heads * a.d,
                items = elements / (wide ? kWide<T> : 1);
  const auto threads =
      static_cast<unsigned>(std::clamp<int64_t>(RoundUp<int64_t>(items, 32), 32, kMaxThreads));
  return Launch(
      context,
      wide ? kRotaryAndCacheKernel<T, Cells<kWide<T>>> : kRotaryAndCacheKernel<T, Cells<1>>,
      {.grid = {a.tokens}, .block = dim3(threads), .overlaps_previous = true}, a);
}

template <class T>
struct Copied {
  template <int kCount>
  using Cells = Copy<T, kCount>;
};
template <class T, class F8>
struct Quantized {
  template <int kCount>
  using Cells = Quantize<T, F8, kCount>;
};

}  // namespace

Status RotaryEmbeddingAndCache::Run(const CudaContext& context) const {
  if (qkv.size() == 0) return {};
  Arguments a{.tokens = qkv.dim(0),
              .qkv = qkv.data,
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
              .d = static_cast<int>(qkv.dim(2)),
              .norms = {}};
  if (q_weight) a.norms = {*q_weight, *k_weight, eps};
  INTARSIA_RETURN_IF_ERROR(
      MakeCacheView(layout, kv_cache_dtype, key_cache, value_cache, layer, a.cache));
  return DispatchDType<kF32, kF16, kBF16>("qkv", qkv.dtype, [&]<DType kType>() -> Status {
    using T = cuda::DeviceT<kType>;
    if (a.cache.dtype == kType) return LaunchCells<T, Copied<T>::template Cells>(context, a);
    return DispatchDType<kF8E4M3, kF8E5M2>(
        "key_cache", a.cache.dtype, [&]<DType kCache>() -> Status {
          using F8 = cuda::DeviceT<kCache>;
          return LaunchCells<T, Quantized<T, F8>::template Cells>(context, a);
        });
  });
}

}  // namespace intarsia
