// The counterpart of src/core/cuda/fp8.cuh, which says what its functions do.
#pragma once
#include "src/core/dtype.h"
#include "tests/emulator/builtins.h"

namespace intarsia::cuda {

template <DType kType>
void Fp8ToF16(uint32_t x, uint32_t& even, uint32_t& odd) {
  constexpr auto kCode = kType == DType::kF8E5M2 ? __NV_E5M2 : __NV_E4M3;
  const auto pair = [&](int first) {
    const auto half = [&](int byte) {
      return uint32_t{__nv_cvt_fp8_to_halfraw(static_cast<uint8_t>(x >> 8 * byte), kCode).x};
    };
    return half(first) | half(first + 2) << 16;
  };
  even = pair(0), odd = pair(1);
}
template <DType kType>
void Fp8NeighborsToF16(uint32_t x, uint32_t& low, uint32_t& high) {
  Fp8ToF16<kType>(__byte_perm(x, 0, 0x3120), low, high);
}

inline uint32_t E4M3PairToF16(uint32_t x) {
  uint32_t low, high;
  Fp8NeighborsToF16<DType::kF8E4M3>(x, low, high);
  return low;
}

}  // namespace intarsia::cuda
