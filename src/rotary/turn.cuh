// Rotary embedding of a vector of pairs, for kernels that differ in where heads come from and go
// to. rotary_embedding.h has the formula.
#pragma once
#include "src/core/cuda/vec.cuh"
#include "src/core/index_vector.h"
#include "src/core/tensor_view.h"

namespace intarsia::cuda {

// What does not depend on the token.
struct Rotation {
  const void* table;  // [max_pos, r]
  DType table_type;
  int64_t max_pos;
  int r, first;  // first: rope_dim_offset
  bool is_neox, inverse;

  Rotation(const TensorView& cos_sin_cache, int64_t rope_dim_offset, bool neox, bool turn_back)
      : table(cos_sin_cache.data),
        table_type(cos_sin_cache.dtype),
        max_pos(cos_sin_cache.dim(0)),
        r(static_cast<int>(cos_sin_cache.dim(1))),
        first(static_cast<int>(rope_dim_offset)),
        is_neox(neox),
        inverse(turn_back) {}

  // Whether heads of d elements can be turned and copied `vector` elements at a time; their
  // addresses are the caller's to check.
  bool InVectors(int64_t d, int vector) const {
    return r / 2 % vector == 0 && first % vector == 0 && (d - r) % vector == 0 &&
           r / 2 * Bytes(table_type) % 16 == 0 && reinterpret_cast<uintptr_t>(table) % 16 == 0;
  }
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
      angles.cos[k + j] = ToFloat(cos.at[j]);
      angles.sin[k + j] = inverse ? -ToFloat(sin.at[j]) : ToFloat(sin.at[j]);
    }
  }
  return angles;
}

// The lookup of a position in the table, apart so that other rotary forms can bring theirs.
template <int kCount>
__device__ __forceinline__ Angles<kCount> AnglesOf(const Rotation& a, int64_t position, int i) {
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

// The same of pairs that each have a position of their own: number pair_axes[i] of the token's
// `axes`.
struct PairPositions {
  IndexVector positions, pair_axes;
  int64_t first, axes;  // first: of the token
};
template <int kCount>
__device__ __forceinline__ Angles<kCount> AnglesOf(const Rotation& a, const PairPositions& of,
                                                   int i) {
  Angles<kCount> angles;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const int64_t axis = of.pair_axes.At(i + j);
    const int64_t position =
        axis >= 0 && axis < of.axes ? of.positions.At(of.first + axis) : int64_t{-1};
    const Angles<1> one = AnglesOf<1>(a, position, i + j);
    angles.cos[j] = one.cos[0];
    angles.sin[j] = one.sin[0];
  }
  return angles;
}

// Turns a pair; fused by hand, so that every kernel rounds alike.
__device__ __forceinline__ void TurnPair(float& x, float& y, float cos, float sin) {
  const float turned = fmaf(x, cos, -(y * sin));
  y = fmaf(y, cos, x * sin);
  x = turned;
}

// Both members of some pairs, turned, and where in the head they belong.
template <class V>
struct TurnedPairs {
  V low, high;
  int low_at, high_at;
};

// Turns the pairs i ... i + V::kSize - 1 of a head. Position: int64_t, or PairPositions.
template <class T, class V, class Position>
__device__ __forceinline__ TurnedPairs<V> Turn(const Rotation& a, const T* in,
                                               const Position& position, int i) {
  constexpr int kCount = V::kSize;
  const int low = a.first + (a.is_neox ? i : 2 * i),
            high = a.is_neox ? low + a.r / 2 : low + kCount;
  // Before the angles, which wait for the position: the loads are on their way together.
  const V x_in = *reinterpret_cast<const V*>(in + low),
          y_in = *reinterpret_cast<const V*>(in + high);
  const Angles<kCount> angles = AnglesOf<kCount>(a, position, i);
  auto x = ToFloats(x_in), y = ToFloats(y_in);
  const auto turn = [&](float& x1, float& x2, int j) {
    TurnPair(x1, x2, angles.cos[j], angles.sin[j]);
  };
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    if (a.is_neox) {
      turn(x.at[j], y.at[j], j);
    } else {
      // x and y are 2 * kCount neighbors: pair j is elements 2j and 2j + 1 of them together.
      const auto of_both = [&](int i) -> float& { return i < kCount ? x.at[i] : y.at[i - kCount]; };
      turn(of_both(2 * j), of_both(2 * j + 1), j);
    }
  }
  return {FromFloats<T>(x), FromFloats<T>(y), low, high};
}

// A head is PairItems() items of pairs, then the vectors that are only copied.
template <class V>
__device__ __forceinline__ int PairItems(const Rotation& a) {
  return a.r / 2 / V::kSize;
}
// Where in the head the copied vector of this number is.
template <class V>
__device__ __forceinline__ int CopiedAt(const Rotation& a, int number) {
  const int rest = number * V::kSize;
  return rest < a.first ? rest : rest + a.r;
}

}  // namespace intarsia::cuda
