// The formula of gating.h on the device, for results that are rounded to T.
#pragma once
#include "src/activation/activations.cuh"
#include "src/activation/gating.h"

namespace intarsia::cuda {

// Bits are those of Silu, GeluTanh and SwigluOai (activations.cuh).
template <class T>
__device__ __forceinline__ float Gate(const Gating& by, float gate, float up) {
  if (by.in_turn) return SwigluOai<T>{by.linear, by.limit}(gate, up);
  const float finite = fminf(fabsf(gate), 1e18f);  // its square is finite, too: it may meet a 0
  return RoundTo<T>(TimesSigmoid<T>(gate, gate * (by.linear + by.cubic * (finite * finite)))) * up;
}

}  // namespace intarsia::cuda
