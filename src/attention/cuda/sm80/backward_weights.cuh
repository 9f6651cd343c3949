// P and dS of the gradient's kernel (backward.cuh), made by a pair of warps from their scores.
#pragma once
#include "src/attention/cuda/scores.cuh"
#include "src/attention/cuda/sm80/backward_tile.cuh"

namespace intarsia::attention::backward {

// Four numbers of a lane, rounded to T, on their way from a warp to its partner.
template <class S>
using Packed = cuda::Vec<typename S::T, 4 * sizeof(typename S::T)>;

template <class S>
__device__ __forceinline__ void Put(char* place, int index, const float (&c)[4]) {
  char* const at = place + (index * 32 + threadIdx.x % 32) * static_cast<int>(sizeof(Packed<S>));
  if constexpr (S::kF32)
    *reinterpret_cast<float4*>(at) = {c[0], c[1], c[2], c[3]};
  else
    *reinterpret_cast<uint2*>(at) = {S::M::Pack(c[0], c[1]), S::M::Pack(c[2], c[3])};
}
template <class S>
__device__ __forceinline__ Packed<S> Get(const char* place, int index) {
  return reinterpret_cast<const Packed<S>*>(place)[index * 32 + threadIdx.x % 32];
}

// Scores of any kind, masked: weights, and how they change with q . k, times 1 / scale.
template <class S>
class Weigher {
 public:
  __device__ Weigher(const Params& p, const KeyTile& tile, int first_key)
      : p_(p), first_key_(first_key), len_k_(tile.sequence.len_k) {}

  // c: q . k of the key first_key + by, and of the key 8 further, with two rows each.
  __device__ __forceinline__ void Apply(float (&c)[4], float (&changes)[4], int by,
                                        const RowInfo<S>& info, int row) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first_key_ + by + i / 2 * 8, column = row + i % 2;
      float x = c[i] * p_.scale, derivative = 1.0f;
      if (p_.softcap > 0.0f) {
        const float y = x / p_.softcap, e = Exp(-2.0f * fabsf(y));
        derivative = 4.0f * e / ((1.0f + e) * (1.0f + e));  // 1 - tanh^2, which would cancel
        x = p_.softcap * Capped(y, y, Tanh(y, e));
      }
      const int position = info.position[column];
      x = x * kLog2e - info.slope[column] * fabsf(static_cast<float>(position - key));
      const bool seen =
          key < len_k_ &&
          (p_.window_left < 0 || key >= position - static_cast<int>(p_.window_left)) &&
          (p_.window_right < 0 || key <= position + static_cast<int>(p_.window_right));
      c[i] = seen ? cuda::Exp2(x - info.stats[column].lse * kLog2e) : 0.0f;
      changes[i] = c[i] * derivative;
    }
  }

 private:
  static __device__ __forceinline__ float Exp(float x) {
    if constexpr (S::kF32) return expf(x);
    return __expf(x);
  }
  // e = exp(-2 |y|). Near 0 it cancels.
  static __device__ __forceinline__ float Tanh(float y, float e) {
    if constexpr (S::kF32) return tanhf(y);
    return copysignf(__fdividef(1.0f - e, 1.0f + e), y);
  }

  const Params& p_;
  const int first_key_, len_k_;
};

// s = P from q . k, of the rows and keys number `number`; `plain`: all rows see all keys, and
// scores are scale * q . k. What dS is to be made of goes to the partner.
template <class S>
__device__ __forceinline__ void MakeWeights(const Frame<S>& f, typename S::Scores& s, int number,
                                            bool plain) {
  const RowInfo<S>& info = f.info(number);
  char* const place = f.pair_scores(number);
  if (plain) {
    const float factor = f.b.forward.scale * kLog2e;
#pragma unroll
    for (int n = 0; n < S::kTileRows / 8; ++n) {
      const float4 two = *reinterpret_cast<const float4*>(&info.stats[cuda::LaneColumn(f.lane, n)]);
      const float lse[2] = {two.x * kLog2e, two.z * kLog2e};
#pragma unroll
      for (int block = 0; block < S::kKeyBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          s[block][n][i] = cuda::Exp2(s[block][n][i] * factor - lse[i % 2]);
        Put<S>(place, n * S::kKeyBlocks + block, s[block][n]);
      }
    }
  } else {
    const Weigher<S> weigher(f.b.forward, f.tile,
                             f.tile.first_key + f.pair() * S::kWarpKeys + cuda::LaneRow(f.lane, 0));
#pragma unroll
    for (int n = 0; n < S::kTileRows / 8; ++n) {
#pragma unroll
      for (int block = 0; block < S::kKeyBlocks; ++block) {
        float changes[4];
        weigher.Apply(s[block][n], changes, 16 * block, info, cuda::LaneColumn(f.lane, n));
        Put<S>(place, n * S::kKeyBlocks + block, changes);
      }
    }
  }
}

// s = dS from dout . v and what the partner put down, and to shared memory.
template <class S>
__device__ __forceinline__ void MakeGradients(const Frame<S>& f, typename S::Scores& s,
                                              int number) {
  using Rows = typename S::ScoreRows;
  const RowInfo<S>& info = f.info(number);
  char* const place = f.pair_scores(number);
#pragma unroll
  for (int n = 0; n < S::kTileRows / 8; ++n) {
    const float4 two = *reinterpret_cast<const float4*>(&info.stats[cuda::LaneColumn(f.lane, n)]);
    const float delta[2] = {two.y, two.w};
#pragma unroll
    for (int block = 0; block < S::kKeyBlocks; ++block) {
      const auto changes = Get<S>(place, n * S::kKeyBlocks + block);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[block][n][i] = cuda::ToFloat(changes.at[i]) * (s[block][n][i] - delta[i % 2]);
    }
  }
  __syncwarp();  // all lanes have read: dS takes the place
#pragma unroll
  for (int n = 0; n < S::kTileRows / 8; ++n) {
#pragma unroll
    for (int block = 0; block < S::kKeyBlocks; ++block) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int key = cuda::LaneRow(f.lane, 2 * block + r);
        const float* const c = &s[block][n][2 * r];
        if constexpr (S::kF32)
          *reinterpret_cast<float2*>(place + Rows::Offset(key, 2 * n + f.lane % 4 / 2) +
                                     f.lane % 2 * 8) = {c[0], c[1]};
        else
          *reinterpret_cast<uint32_t*>(place + Rows::Offset(key, n) + f.lane % 4 * 4) =
              S::M::Pack(c[0], c[1]);
      }
    }
  }
}

}  // namespace intarsia::attention::backward
