#pragma once
#include <cstdint>

#include "src/core/index_vector.h"  // INTARSIA_HOST_DEVICE

namespace intarsia::cuda {

// A thread's place in a ring of kPlaces buffers, each with a barrier (tma.cuh) for "full" and
// "empty".
template <int kPlaces>
struct RingPlace {
  int index = 0;
  uint32_t parity = 0;  // of the round: to wait for "full"; "empty" takes the other one
  INTARSIA_HOST_DEVICE void Next() {
    if (++index < kPlaces) return;
    index = 0;
    parity ^= 1;
  }
  // The same, `count` times.
  INTARSIA_HOST_DEVICE void Advance(int count) {
    const int rounds = (index + count) / kPlaces;
    index += count - rounds * kPlaces;
    parity ^= rounds & 1;
  }
  INTARSIA_HOST_DEVICE RingPlace After() const {
    RingPlace next = *this;
    next.Next();
    return next;
  }
};

}  // namespace intarsia::cuda
