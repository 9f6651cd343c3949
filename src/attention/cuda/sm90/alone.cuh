// S = Q K' of a warp's rows, by this warp alone, which no other waits for: where it needs the
// scores of a tile once more (consumer.cuh).
#pragma once
#include "src/attention/cuda/sm90/softmax.cuh"

namespace intarsia::attention::sm90 {

// c[16x8] += a b, of registers that hold 32 bytes of each row.
template <class T>
__device__ __forceinline__ void MultiplyInWarp(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1) {
  if constexpr (kIsE4M3<T>)
    cuda::MmaE4M3(c, a, b0, b1);
  else if constexpr (std::is_same_v<T, __half>)
    cuda::MmaF16(c, a, b0, b1);
  else
    cuda::MmaBF16(c, a, b0, b1);
}

// T is the operands' type, `stage` the tile of K.
template <class S, class T>
__device__ __forceinline__ void MultiplyKeysAlone(float (&s)[S::kTileKeys / 2],
                                                  const Shared<S>& shared, int stage) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(threadIdx.x) / 32 * 16 - cuda::kWarpgroupThreads / 32 * 16;
  const uint32_t q = cuda::SharedAddress(shared.q), k = cuda::SharedAddress(shared.k[stage]);
#pragma unroll
  for (float& x : s) x = 0.0f;
#pragma unroll 1
  for (int column = 0; column < S::kD * S::kBytes / 2; column += cuda::kWgmmaStep) {
    uint32_t a[4];
    cuda::LdMatrix4(a,
                    q + cuda::PanelOffset(S::kTileRows, row + lane % 16, column + lane / 16 * 8));
#pragma unroll
    for (int key = 0; key < S::kTileKeys; key += 16) {
      uint32_t b[4];
      cuda::LdMatrix4(b, k + cuda::PanelOffset(S::kTileKeys, key + lane % 8 + lane / 16 * 8,
                                               column + lane / 8 % 2 * 8));
#pragma unroll
      for (int half = 0; half < 2; ++half)
        MultiplyInWarp<T>(reinterpret_cast<float(&)[4]>(s[key / 2 + 4 * half]), a, b[2 * half],
                          b[2 * half + 1]);
    }
  }
}

}  // namespace intarsia::attention::sm90
