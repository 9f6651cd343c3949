#include <algorithm>

#include "src/core/cuda/launch.h"
#include "src/core/dispatch.h"
#include "src/core/index_vector.h"
#include "src/core/round.h"
#include "src/ops/rotary_embedding/rotary_embedding.h"
#include "src/rotary/turn.cuh"

namespace intarsia {
namespace {

using cuda::Vec;

constexpr int kMaxThreads = 512;

struct Arguments {
  const void* in[2];  // query and key: T [tokens, heads, d]
  void* out[2];
  RotaryEmbedding::Strides from[2], to[2];
  int heads[2];  // 0: no key
  cuda::Rotation rotation;
  IndexVector positions, pair_axes;  // pair_axes absent: a position a token
  int64_t num_positions;             // of a token
  int d;
};

// Where a token's pairs stand.
template <bool kPairAxes>
__device__ __forceinline__ auto PositionOf(const Arguments& a, int64_t token) {
  if constexpr (kPairAxes)
    return cuda::PairPositions{a.positions, a.pair_axes, token * a.num_positions, a.num_positions};
  else
    return a.positions.At(token);
}

// A block a token.
template <class T, int kBytes, bool kPairAxes>
__global__ void __launch_bounds__(kMaxThreads) RotaryKernel(Arguments a) {
  using V = Vec<T, kBytes>;
  const int64_t token = blockIdx.x;
  const auto position = PositionOf<kPairAxes>(a, token);
  const int pair_items = cuda::PairItems<V>(a.rotation),
            items = pair_items + (a.d - a.rotation.r) / V::kSize;
  const int total = (a.heads[0] + a.heads[1]) * items;
  for (int i = threadIdx.x; i < total; i += blockDim.x) {
    const int which = i >= a.heads[0] * items, head = i / items - which * a.heads[0],
              item = i % items;
    // No a.in[which]: a run-time index would move the arguments to local memory.
    const RotaryEmbedding::Strides from = which ? a.from[1] : a.from[0],
                                   to = which ? a.to[1] : a.to[0];
    const T* in =
        static_cast<const T*>(which ? a.in[1] : a.in[0]) + token * from.token + head * from.head;
    T* out = static_cast<T*>(which ? a.out[1] : a.out[0]) + token * to.token + head * to.head;
    if (item < pair_items) {
      // Read before it is written: out may be in.
      const auto turned = cuda::Turn<T, V>(a.rotation, in, position, item * V::kSize);
      *reinterpret_cast<V*>(out + turned.low_at) = turned.low;
      *reinterpret_cast<V*>(out + turned.high_at) = turned.high;
    } else {
      const int column = cuda::CopiedAt<V>(a.rotation, item - pair_items);
      *reinterpret_cast<V*>(out + column) = *reinterpret_cast<const V*>(in + column);
    }
  }
}

template <class T, int kBytes, bool kPairAxes>
const cuda::Kernel kRotaryKernel(
    "RotaryKernel", reinterpret_cast<const void*>(&RotaryKernel<T, kBytes, kPairAxes>));

template <class T, int kBytes>
const cuda::Kernel& KernelFor(const Arguments& a) {
  return a.pair_axes.data ? kRotaryKernel<T, kBytes, true> : kRotaryKernel<T, kBytes, false>;
}

}  // namespace

Status RotaryEmbedding::Run(const CudaContext& context) const {
  const int64_t d = head_dim(), tokens = this->tokens(), r = cos_sin_cache.dim(1);
  if (tokens == 0 || d == 0) return {};
  const Arguments a{.in = {query.data, key ? key->data : nullptr},
                    .out = {query_out.data, key_out.data},
                    .from = {StridesOf(query), key ? StridesOf(*key) : Strides{}},
                    .to = {StridesOf(query_out), key ? StridesOf(key_out) : Strides{}},
                    .heads = {static_cast<int>(query.size() / tokens / d),
                              key ? static_cast<int>(key->size() / tokens / d) : 0},
                    .rotation = {cos_sin_cache, rope_dim_offset, is_neox, inverse},
                    .positions = ToIndexVector(positions),
                    .pair_axes = ToIndexVector(pair_axes),
                    .num_positions = num_positions(),
                    .d = static_cast<int>(d)};
  return DispatchDType<kF32, kF16, kBF16>("query", query.dtype, [&]<DType kType>() -> Status {
    using T = cuda::DeviceT<kType>;
    constexpr int kElement = sizeof(T), kVector = 16 / kElement;
    const int64_t strides[] = {a.from[0].token, a.from[0].head, a.from[1].token, a.from[1].head,
                               a.to[0].token,   a.to[0].head,   a.to[1].token,   a.to[1].head};
    const bool aligned =
        a.rotation.InVectors(d, kVector) &&
        std::ranges::all_of(strides, [&](int64_t stride) { return stride % kVector == 0; }) &&
        cuda::AllAligned16(d * kElement, a.in[0], a.in[1], a.out[0], a.out[1]);
    const int64_t items = (a.heads[0] + a.heads[1]) * (r / 2 + d - r) / (aligned ? kVector : 1);
    const auto threads =
        static_cast<unsigned>(std::clamp<int64_t>(RoundUp<int64_t>(items, 32), 32, kMaxThreads));
    return Launch(context, aligned ? KernelFor<T, 16>(a) : KernelFor<T, kElement>(a),
                  {{tokens}, dim3(threads)}, a);
  });
}

}  // namespace intarsia
