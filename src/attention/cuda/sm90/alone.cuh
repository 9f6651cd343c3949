// S = Q K' of a warp's rows, by this warp alone, which no other waits for: where it needs the
// scores of a tile once more (consumer.cuh). That is rare, and the tile of K is no longer in shared
// memory then: it comes from the cache.
#pragma once
#include "src/attention/cuda/sm90/softmax.cuh"
#include "src/core/cuda/fp8.cuh"

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

// Bytes byte ... byte + 3 of a key as it is multiplied. `row`: where it begins in the cache.
template <class S>
__device__ __forceinline__ uint32_t LoadKey(const Params& p, const char* row, int byte) {
  const int column = byte / S::kBytes;
  if (column >= p.head_dim) return 0;
  const char* const at = row + column * S::kCopiedBytes;
  if constexpr (S::kCodes) {
    const uint32_t codes = *reinterpret_cast<const uint16_t*>(at);
    uint32_t pair, none;
    if (p.cache.dtype == kF8E4M3)
      cuda::Fp8NeighborsToF16<kF8E4M3>(codes, pair, none);
    else
      cuda::Fp8NeighborsToF16<kF8E5M2>(codes, pair, none);
    return pair;
  } else {
    return *reinterpret_cast<const uint32_t*>(at);
  }
}

// Of a tile whose keys all exist; Q lies in shared memory. T is the operands' type. Key by key:
// addresses of all keys at once made the loop over tiles spill.
template <class S, class T>
__device__ __forceinline__ void MultiplyKeysAlone(float (&s)[S::kTileKeys / 2], const Params& p,
                                                  const LaunchPlan& plan, const Shared<S>& shared,
                                                  const Task& task, int first_key) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(threadIdx.x) / 32 * 16 - cuda::kWarpgroupThreads / 32 * 16;
#pragma unroll
  for (int key = 0; key < S::kTileKeys; key += 8) {
    float(&c)[4] = reinterpret_cast<float(&)[4]>(s[key / 2]);
    c[0] = c[1] = c[2] = c[3] = 0.0f;
    const KeyPlaces places(p, plan.page_size, task.sequence);
    const char* const of_key =
        static_cast<const char*>(HeadRowsOf(p, task.kv_head, S::kCopiedBytes).k) +
        places.KeyOffset(places.Find(first_key + key + lane / 4)) * S::kCopiedBytes;
#pragma unroll 1
    for (int byte = 0; byte < S::kD * S::kBytes; byte += 32) {
      uint32_t a[4];
      cuda::LdMatrix4(
          a, cuda::SharedAddress(shared.q) +
                 cuda::PanelOffset(S::kTileRows, row + lane % 16, byte / 2 + lane / 16 * 8));
      const int own = byte + lane % 4 * 4;
      MultiplyInWarp<T>(c, a, LoadKey<S>(p, of_key, own), LoadKey<S>(p, of_key, own + 16));
    }
  }
}

}  // namespace intarsia::attention::sm90
