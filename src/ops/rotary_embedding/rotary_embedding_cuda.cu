#include <algorithm>

#include "src/core/cuda/launch.h"
#include "src/core/cuda/vec.cuh"
#include "src/core/dispatch.h"
#include "src/core/index_vector.h"
#include "src/core/round.h"
#include "src/ops/rotary_embedding/rotary_embedding.h"

namespace intarsia {
namespace {

using cuda::Vec;

constexpr int kMaxThreads = 512;

struct Arguments {
  const void* in[2];  // query and key: T [tokens, heads, d]
  void* out[2];
  RotaryEmbedding::Strides from[2], to[2];
  int heads[2];       // 0: no key
  const void* table;  // [max_pos, r]
  DType table_type;
  IndexVector positions;
  int64_t max_pos;
  int d, r, first;  // first: rope_dim_offset
  bool is_neox, inverse;
};

// Angles i ... i + kCount - 1 of a position.
template <int kCount>
struct Angles {
  float cos[kCount], sin[kCount];
};
template <class C, int kCount>
__device__ __forceinline__ Angles<kCount> LoadAngles(const C* row, int half, int i, bool inverse) {
  using V = Vec<C, kCount * sizeof(C) < 16 ? kCount * sizeof(C) : 16>;
  Angles<kCount> angles;
#pragma unroll
  for (int k = 0; k < kCount; k += V::kSize) {
    const V cos = *reinterpret_cast<const V*>(row + i + k),
            sin = *reinterpret_cast<const V*>(row + half + i + k);
#pragma unroll
    for (int j = 0; j < V::kSize; ++j) {
      angles.cos[k + j] = cuda::ToFloat(cos.at[j]);
      angles.sin[k + j] = inverse ? -cuda::ToFloat(sin.at[j]) : cuda::ToFloat(sin.at[j]);
    }
  }
  return angles;
}

// The lookup of an op's positions in the table, apart so that other rotary forms can bring theirs.
template <int kCount>
__device__ __forceinline__ Angles<kCount> AnglesOf(const Arguments& a, int64_t position, int i) {
  if (position < 0 || position >= a.max_pos) {
    Angles<kCount> none;
#pragma unroll
    for (int j = 0; j < kCount; ++j) none.cos[j] = 1.0f, none.sin[j] = 0.0f;
    return none;
  }
  const int64_t at = position * a.r;
  switch (a.table_type) {
    case DType::kF32:
      return LoadAngles<float, kCount>(static_cast<const float*>(a.table) + at, a.r / 2, i,
                                       a.inverse);
    case DType::kF16:
      return LoadAngles<__half, kCount>(static_cast<const __half*>(a.table) + at, a.r / 2, i,
                                        a.inverse);
    default:
      return LoadAngles<__nv_bfloat16, kCount>(static_cast<const __nv_bfloat16*>(a.table) + at,
                                               a.r / 2, i, a.inverse);
  }
}

// Turns the pairs i ... i + V::kSize - 1 of a head. Both members of a pair are read before either
// is written, so out may be in.
template <class T, class V>
__device__ __forceinline__ void TurnPairs(const Arguments& a, const T* in, T* out, int64_t position,
                                          int i) {
  constexpr int kCount = V::kSize;
  const Angles<kCount> angles = AnglesOf<kCount>(a, position, i);
  const int low = a.first + (a.is_neox ? i : 2 * i),
            high = a.is_neox ? low + a.r / 2 : low + kCount;
  auto x = cuda::ToFloats(*reinterpret_cast<const V*>(in + low)),
       y = cuda::ToFloats(*reinterpret_cast<const V*>(in + high));
  const auto turn = [&](float& x1, float& x2, int j) {
    const float turned = x1 * angles.cos[j] - x2 * angles.sin[j];
    x2 = x2 * angles.cos[j] + x1 * angles.sin[j];
    x1 = turned;
  };
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    if (a.is_neox) {
      turn(x.at[j], y.at[j], j);
    } else {
      // x and y are 2 * kCount neighbours: pair j is elements 2j and 2j + 1 of them together.
      const auto of_both = [&](int i) -> float& { return i < kCount ? x.at[i] : y.at[i - kCount]; };
      turn(of_both(2 * j), of_both(2 * j + 1), j);
    }
  }
  *reinterpret_cast<V*>(out + low) = cuda::FromFloats<T>(x);
  *reinterpret_cast<V*>(out + high) = cuda::FromFloats<T>(y);
}

// A block a token. A head is r / 2 / V::kSize items of pairs, then the vectors that are only
// copied.
template <class T, int kBytes>
__global__ void __launch_bounds__(kMaxThreads) RotaryKernel(Arguments a) {
  using V = Vec<T, kBytes>;
  const int64_t token = blockIdx.x, position = a.positions.At(token);
  const int pair_items = a.r / 2 / V::kSize, items = pair_items + (a.d - a.r) / V::kSize;
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
      TurnPairs<T, V>(a, in, out, position, item * V::kSize);
    } else {
      const int rest = (item - pair_items) * V::kSize, column = rest < a.first ? rest : rest + a.r;
      *reinterpret_cast<V*>(out + column) = *reinterpret_cast<const V*>(in + column);
    }
  }
}

template <class T, int kBytes>
const cuda::Kernel kRotaryKernel("RotaryKernel",
                                 reinterpret_cast<const void*>(&RotaryKernel<T, kBytes>));

}  // namespace

Status RotaryEmbedding::Run(const CudaContext& context) const {
  const int64_t d = head_dim(), tokens = positions.size(), r = cos_sin_cache.dim(1);
  if (tokens == 0 || d == 0) return {};
  const Arguments a{.in = {query.data, key ? key->data : nullptr},
                    .out = {query_out.data, key_out.data},
                    .from = {StridesOf(query), key ? StridesOf(*key) : Strides{}},
                    .to = {StridesOf(query_out), key ? StridesOf(key_out) : Strides{}},
                    .heads = {static_cast<int>(query.size() / tokens / d),
                              key ? static_cast<int>(key->size() / tokens / d) : 0},
                    .table = cos_sin_cache.data,
                    .table_type = cos_sin_cache.dtype,
                    .positions = ToIndexVector(positions),
                    .max_pos = cos_sin_cache.dim(0),
                    .d = static_cast<int>(d),
                    .r = static_cast<int>(r),
                    .first = static_cast<int>(rope_dim_offset),
                    .is_neox = is_neox,
                    .inverse = inverse};
  return DispatchDType<kF32, kF16, kBF16>("query", query.dtype, [&]<DType kType>() -> Status {
    using T = cuda::DeviceT<kType>;
    constexpr int kElement = sizeof(T), kVector = 16 / kElement;
    const int64_t strides[] = {a.from[0].token, a.from[0].head, a.from[1].token, a.from[1].head,
                               a.to[0].token,   a.to[0].head,   a.to[1].token,   a.to[1].head};
    const bool aligned =
        r / 2 % kVector == 0 && rope_dim_offset % kVector == 0 && (d - r) % kVector == 0 &&
        r / 2 * Bytes(cos_sin_cache.dtype) % 16 == 0 &&
        std::ranges::all_of(strides, [&](int64_t stride) { return stride % kVector == 0; }) &&
        cuda::AllAligned16(d * kElement, a.in[0], a.in[1], a.out[0], a.out[1], a.table);
    const int64_t items = (a.heads[0] + a.heads[1]) * (r / 2 + d - r) / (aligned ? kVector : 1);
    const auto threads =
        static_cast<unsigned>(std::clamp<int64_t>(RoundUp<int64_t>(items, 32), 32, kMaxThreads));
    return Launch(context, aligned ? kRotaryKernel<T, 16> : kRotaryKernel<T, kElement>,
                  {{tokens}, dim3(threads)}, a);
  });
}

}  // namespace intarsia
