// The counterpart of src/core/cuda/wgmma_e4m3.cuh. Sums have the bits of f32, the tensor cores'
// fewer.
#pragma once
#include "src/core/cuda/wgmma.cuh"

namespace intarsia::cuda {

template <int kN>
struct WgmmaE4M3 {
  template <class T, bool kAdd>
  static void Shared(float (&d)[kN / 2], uint64_t a, uint64_t b) {
    MultiplyInWarpgroup<T, kN, kAdd, false, false, false>(d, nullptr, a, b);
  }
  template <class T>
  static void Registers(float (&d)[kN / 2], const uint32_t* a, uint64_t b) {
    MultiplyInWarpgroup<T, kN, true, true, false, false>(d, a, 0, b);
  }
};

}  // namespace intarsia::cuda
