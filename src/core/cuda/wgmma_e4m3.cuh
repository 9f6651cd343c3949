// Products of e4m3 with Hopper's tensor cores, sm_90a: wgmma.cuh says how they are called. A step
// sums over 32 elements, the bytes of 16 in 16-bit types, and both operands in shared memory are by
// ColumnsSummed. Sums have some 14 bits; what does not fit is cut off.
#pragma once
#include <cuda_fp8.h>

#include "src/core/cuda/wgmma.cuh"

namespace intarsia::cuda {

// As Wgmma, for T = __nv_fp8_e4m3.
template <int kN>
struct WgmmaE4M3;

#define EIGHT(i)                                                                              \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define WGMMA(n, list, a0, a1, a2, a3, a4, ...)                                                \
  template <>                                                                                  \
  struct WgmmaE4M3<n> {                                                                        \
    template <class T, bool kAdd>                                                              \
    static __device__ __forceinline__ void Shared(float (&d)[n / 2], uint64_t from,            \
                                                  uint64_t descriptor) {                       \
      static_assert(std::is_same_v<T, __nv_fp8_e4m3>);                                         \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" list "}, " a0  \
                   ", " a1 ", " a2 ", 1, 1;"                                                   \
                   : __VA_ARGS__                                                               \
                   : "l"(from), "l"(descriptor), "n"(kAdd ? 1 : 0));                           \
    }                                                                                          \
    template <class T>                                                                         \
    static __device__ __forceinline__ void Registers(float (&d)[n / 2], const uint32_t* from,  \
                                                     uint64_t descriptor) {                    \
      static_assert(std::is_same_v<T, __nv_fp8_e4m3>);                                         \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" list "}, {" a0 \
                   ", " a1 ", " a2 ", " a3 "}, " a4 ", 1, 1, 1;"                               \
                   : __VA_ARGS__                                                               \
                   : "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]), "l"(descriptor)); \
    }                                                                                          \
  }
// clang-format off: as in wgmma.cuh
#define LIST_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LIST_64 \
  LIST_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
// clang-format on
#define OUT_32 EIGHT(0), EIGHT(8), EIGHT(16), EIGHT(24)
WGMMA(64, LIST_32, "%32", "%33", "%34", "%35", "%36", OUT_32);
WGMMA(128, LIST_64, "%64", "%65", "%66", "%67", "%68", OUT_32, EIGHT(32), EIGHT(40), EIGHT(48),
      EIGHT(56));
#undef EIGHT
#undef WGMMA
#undef LIST_32
#undef LIST_64
#undef OUT_32

}  // namespace intarsia::cuda
