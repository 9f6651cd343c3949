// What CUDA C++ adds to C++, for the emulator; the compiler includes it first. Words and functions
// as in the CUDA C++ Programming Guide.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "tests/emulator/emulator.h"

#undef __launch_bounds__
#undef __grid_constant__
#undef __shared__
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static  // one block runs at a time
#define threadIdx (::intarsia::emulator::fiber->index)
#define blockIdx (::intarsia::emulator::block->index)
#define blockDim (::intarsia::emulator::block->dim)
#define gridDim (::intarsia::emulator::block->grid)

using std::max;
using std::min;

namespace intarsia::emulator {

template <class T>
struct Exchanged {
  T in, out;
  int source;  // a lane; one that does not exist: the own number stays
};
template <class T>
T Shuffle(const char* what, T x, int source) {
  Exchanged<T> own{x, x, source};
  InWarp(what, own, [](Exchanged<T>** lanes) {
    for (int i = 0; i < 32; ++i) {
      const int from = lanes[i]->source;
      if (from >= 0 && from < 32) lanes[i]->out = lanes[from]->in;
    }
  });
  return own.out;
}
template <class T, class F>
T Reduce(const char* what, T x, F f) {
  Exchanged<T> own{x, x, 0};
  InWarp(what, own, [&](Exchanged<T>** lanes) {
    T all = lanes[0]->in;
    for (int i = 1; i < 32; ++i) all = f(all, lanes[i]->in);
    for (int i = 0; i < 32; ++i) lanes[i]->out = all;
  });
  return own.out;
}

}  // namespace intarsia::emulator

// ---------------------------------------------------------------- of a warp; masks are full

template <class T>
T __shfl_sync(unsigned, T x, int source) {
  return intarsia::emulator::Shuffle("shfl", x, source & 31);
}
template <class T>
T __shfl_xor_sync(unsigned, T x, int mask) {
  return intarsia::emulator::Shuffle("shfl.bfly", x, intarsia::emulator::Lane() ^ mask);
}
template <class T>
T __shfl_up_sync(unsigned, T x, unsigned delta) {
  return intarsia::emulator::Shuffle("shfl.up", x,
                                     intarsia::emulator::Lane() - static_cast<int>(delta));
}
inline unsigned __ballot_sync(unsigned, int is) {
  const unsigned own = unsigned{is != 0} << intarsia::emulator::Lane();
  return intarsia::emulator::Reduce("vote", own, [](unsigned a, unsigned b) { return a | b; });
}
inline int __any_sync(unsigned mask, int is) { return __ballot_sync(mask, is) != 0; }
template <class T>
T __reduce_min_sync(unsigned, T x) {
  return intarsia::emulator::Reduce("redux.min", x, [](T a, T b) { return std::min(a, b); });
}
template <class T>
T __reduce_max_sync(unsigned, T x) {
  return intarsia::emulator::Reduce("redux.max", x, [](T a, T b) { return std::max(a, b); });
}
template <class T>
T __reduce_add_sync(unsigned, T x) {
  return intarsia::emulator::Reduce("redux.add", x, [](T a, T b) { return a + b; });
}
inline void __syncwarp() {
  intarsia::emulator::Reduce("syncwarp", 0, [](int, int) { return 0; });
}
inline int __syncthreads_or(int is) {
  return intarsia::emulator::ArriveAt(0, intarsia::emulator::block->threads, true, is != 0);
}
inline void __syncthreads() { __syncthreads_or(0); }

// ---------------------------------------------------------------- of a thread

inline int __ffs(unsigned x) { return x ? std::countr_zero(x) + 1 : 0; }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline unsigned __vmaxs2(unsigned x, unsigned y) {
  const auto larger = [&](int shift) {
    const auto part = [&](unsigned pair) { return static_cast<int16_t>(pair >> shift); };
    return unsigned{static_cast<uint16_t>(std::max(part(x), part(y)))} << shift;
  };
  return larger(0) | larger(16);
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = uint64_t{y} << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i)  // without prmt's sign mode, as CUDA's
    result |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return result;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (shift & 31));
}
template <class T>
T __ldg(const T* from) {
  return *from;
}
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
#define __expf expf
