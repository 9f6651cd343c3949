// Products of int8 with Hopper's tensor cores, sm_90a: wgmma.cuh says how they are called. A step
// sums over 32 elements, both operands in shared memory are by ColumnsSummed, and sums are exact.
#pragma once
#include "src/core/cuda/wgmma.cuh"

namespace intarsia::cuda {

#define EIGHT(i)                                                                              \
  "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), \
      "+r"(d[i + 6]), "+r"(d[i + 7])
// d[64 x 128] (+)= a[64 x 32] b[32 x 128]; without kAdd, d is replaced.
template <bool kAdd>
__device__ __forceinline__ void WgmmaS8(int32_t (&d)[64], uint64_t a, uint64_t b) {
  asm volatile(
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
      "%10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, "
      "%28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "
      "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, adds;\n}\n"
      : EIGHT(0), EIGHT(8), EIGHT(16), EIGHT(24), EIGHT(32), EIGHT(40), EIGHT(48), EIGHT(56)
      : "l"(a), "l"(b), "n"(kAdd ? 1 : 0));
}
#undef EIGHT

}  // namespace intarsia::cuda
