// Matrix products of a warpgroup on Hopper's tensor cores, sm_90a: wgmma (PTX ISA, "Asynchronous
// Warpgroup Level Matrix Multiply-Accumulate"). Four warps, from a multiple of four on, call each
// function together. Between a product and the wait for it nobody may touch its accumulators, nor
// write its operands.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "src/core/cuda/wgmma_layout.h"

namespace intarsia::cuda {

inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kWgmmaRows = 64;  // of A and of the result
inline constexpr int kWgmmaStep = 16;  // 16-bit elements that one product sums over

// Before the first product after registers of its operands were written.
__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Ends a group of products.
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending of the newest groups are in flight.
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// A matrix descriptor that is the same in all lanes, as the compiler knows by the shuffle: the
// products of a loop then take theirs by additions in uniform registers.
class Descriptor {
 public:
  __device__ __forceinline__ explicit Descriptor(uint64_t descriptor)
      : low_(__shfl_sync(0xffffffffu, static_cast<uint32_t>(descriptor), 0)),
        high_(static_cast<uint32_t>(descriptor >> 32)) {}
  // So many bytes further on, a multiple of 16.
  __device__ __forceinline__ uint64_t At(uint32_t bytes) const {
    uint64_t descriptor;
    asm("mov.b64 %0, {%1, %2};" : "=l"(descriptor) : "r"(low_ + bytes / 16), "r"(high_));
    return descriptor;
  }

 private:
  uint32_t low_, high_;
};

// D[64 x kN] (+)= A[64 x 16] B[16 x kN] for one kN.
//   Shared<T, kAdd, kRowsA, kRowsB>(d, a, b): descriptors by RowsSummed where kRows is set, by
//                             ColumnsSummed where it is not; without kAdd, D is replaced
//   Registers<T>(d, a, b):    a is four registers of pairs, b a descriptor by RowsSummed; adds
//   RegistersColumns<T, kAdd>(d, a, b):  the same with b by ColumnsSummed
template <int kN>
struct Wgmma;

// An asm statement spells out its registers, so each kN needs one of its own.
#define TEN(tens)                                                                         \
  "%" #tens "0, %" #tens "1, %" #tens "2, %" #tens "3, %" #tens "4, %" #tens "5, %" #tens \
  "6, %" #tens "7, %" #tens "8, %" #tens "9, "
#define EIGHT(i)                                                                              \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define SHARED(n, type, list, a, b, add, rows_a, rows_b, ...)                                    \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" list "}, " a \
               ", " b ", " add ", 1, 1, " rows_a ", " rows_b ";"                                 \
               : __VA_ARGS__                                                                     \
               : "l"(from), "l"(descriptor), "n"(kAdd ? 1 : 0), "n"(kRowsA ? 1 : 0),             \
                 "n"(kRowsB ? 1 : 0))
#define REGISTERS(n, type, list, a, b, add, rows_b, ...)                                          \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" list "}, {" a \
               "}, " b ", " add ", 1, 1, " rows_b ";"                                             \
               : __VA_ARGS__                                                                      \
               : "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]), "l"(descriptor))
#define WGMMA(n, list, a0, a1, a2, a3, a4, ...)                                               \
  template <>                                                                                 \
  struct Wgmma<n> {                                                                           \
    template <class T, bool kAdd, bool kRowsA = false, bool kRowsB = false>                   \
    static __device__ __forceinline__ void Shared(float (&d)[n / 2], uint64_t from,           \
                                                  uint64_t descriptor) {                      \
      if constexpr (std::is_same_v<T, __half>)                                                \
        SHARED(n, "f16", list, a0, a1, a2, a3, a4, __VA_ARGS__);                              \
      else                                                                                    \
        SHARED(n, "bf16", list, a0, a1, a2, a3, a4, __VA_ARGS__);                             \
    }                                                                                         \
    template <class T>                                                                        \
    static __device__ __forceinline__ void Registers(float (&d)[n / 2], const uint32_t* from, \
                                                     uint64_t descriptor) {                   \
      if constexpr (std::is_same_v<T, __half>)                                                \
        REGISTERS(n, "f16", list, a0 ", " a1 ", " a2 ", " a3, a4, "1", "1", __VA_ARGS__);     \
      else                                                                                    \
        REGISTERS(n, "bf16", list, a0 ", " a1 ", " a2 ", " a3, a4, "1", "1", __VA_ARGS__);    \
    }                                                                                         \
    template <class T, bool kAdd>                                                             \
    static __device__ __forceinline__ void RegistersColumns(float (&d)[n / 2],                \
                                                            const uint32_t* from,             \
                                                            uint64_t descriptor) {            \
      constexpr bool kHalf = std::is_same_v<T, __half>;                                       \
      if constexpr (kHalf && kAdd)                                                            \
        REGISTERS(n, "f16", list, a0 ", " a1 ", " a2 ", " a3, a4, "1", "0", __VA_ARGS__);     \
      if constexpr (kHalf && !kAdd)                                                           \
        REGISTERS(n, "f16", list, a0 ", " a1 ", " a2 ", " a3, a4, "0", "0", __VA_ARGS__);     \
      if constexpr (!kHalf && kAdd)                                                           \
        REGISTERS(n, "bf16", list, a0 ", " a1 ", " a2 ", " a3, a4, "1", "0", __VA_ARGS__);    \
      if constexpr (!kHalf && !kAdd)                                                          \
        REGISTERS(n, "bf16", list, a0 ", " a1 ", " a2 ", " a3, a4, "0", "0", __VA_ARGS__);    \
    }                                                                                         \
  }
// clang-format off: its versions lay these lists out in ways that they themselves refuse
#define LIST_4 "%0, %1, %2, %3"
#define LIST_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define LIST_16 TEN() "%10, %11, %12, %13, %14, %15"
#define LIST_24 TEN() TEN(1) "%20, %21, %22, %23"
#define LIST_32 TEN() TEN(1) TEN(2) "%30, %31"
#define LIST_40 TEN() TEN(1) TEN(2) "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39"
#define LIST_48 TEN() TEN(1) TEN(2) TEN(3) "%40, %41, %42, %43, %44, %45, %46, %47"
#define LIST_56 TEN() TEN(1) TEN(2) TEN(3) TEN(4) "%50, %51, %52, %53, %54, %55"
#define LIST_64 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60, %61, %62, %63"
#define LIST_72 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) "%70, %71"
#define LIST_80 \
  TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) \
  "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define LIST_96 \
  TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) \
  "%90, %91, %92, %93, %94, %95"
#define LIST_128 \
  TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) TEN(11) \
  "%120, %121, %122, %123, %124, %125, %126, %127"
// clang-format on
#define OUT_4 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define OUT_8 EIGHT(0)
#define OUT_16 OUT_8, EIGHT(8)
#define OUT_24 OUT_16, EIGHT(16)
#define OUT_32 OUT_24, EIGHT(24)
#define OUT_40 OUT_32, EIGHT(32)
#define OUT_48 OUT_40, EIGHT(40)
#define OUT_56 OUT_48, EIGHT(48)
#define OUT_64 OUT_56, EIGHT(56)
#define OUT_72 OUT_64, EIGHT(64)
#define OUT_80 OUT_72, EIGHT(72)
#define OUT_96 OUT_80, EIGHT(80), EIGHT(88)
#define OUT_128 OUT_96, EIGHT(96), EIGHT(104), EIGHT(112), EIGHT(120)
WGMMA(8, LIST_4, "%4", "%5", "%6", "%7", "%8", OUT_4);
WGMMA(16, LIST_8, "%8", "%9", "%10", "%11", "%12", OUT_8);
WGMMA(32, LIST_16, "%16", "%17", "%18", "%19", "%20", OUT_16);
WGMMA(48, LIST_24, "%24", "%25", "%26", "%27", "%28", OUT_24);
WGMMA(64, LIST_32, "%32", "%33", "%34", "%35", "%36", OUT_32);
WGMMA(80, LIST_40, "%40", "%41", "%42", "%43", "%44", OUT_40);
WGMMA(96, LIST_48, "%48", "%49", "%50", "%51", "%52", OUT_48);
WGMMA(112, LIST_56, "%56", "%57", "%58", "%59", "%60", OUT_56);
WGMMA(128, LIST_64, "%64", "%65", "%66", "%67", "%68", OUT_64);
WGMMA(144, LIST_72, "%72", "%73", "%74", "%75", "%76", OUT_72);
WGMMA(160, LIST_80, "%80", "%81", "%82", "%83", "%84", OUT_80);
WGMMA(192, LIST_96, "%96", "%97", "%98", "%99", "%100", OUT_96);
WGMMA(256, LIST_128, "%128", "%129", "%130", "%131", "%132", OUT_128);
#undef TEN
#undef EIGHT
#undef SHARED
#undef REGISTERS
#undef WGMMA
#undef LIST_4
#undef LIST_8
#undef LIST_16
#undef LIST_24
#undef LIST_32
#undef LIST_40
#undef LIST_48
#undef LIST_56
#undef LIST_64
#undef LIST_72
#undef LIST_80
#undef LIST_96
#undef LIST_128
#undef OUT_4
#undef OUT_8
#undef OUT_16
#undef OUT_24
#undef OUT_32
#undef OUT_40
#undef OUT_48
#undef OUT_56
#undef OUT_64
#undef OUT_72
#undef OUT_80
#undef OUT_96
#undef OUT_128

}  // namespace intarsia::cuda
