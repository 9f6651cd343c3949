// The PTX instructions that CUDA C++ has no words for, one function each. sm_80 and newer.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace intarsia::cuda {

// The block's dynamic shared memory, at a multiple of 1024 bytes if its size asks for that
// (kSwizzleAtomBytes in wgmma_layout.h).
__device__ __forceinline__ char* DynamicShared() {
  extern __shared__ __align__(1024) char bytes[];
  return bytes;
}

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// For kernels that LaunchConfig::overlaps_previous is for (PTX ISA, "griddepcontrol"). The first
// waits until the kernel before this one is done and what it wrote is visible. After the second the
// next kernel may begin, as soon as all blocks of this one have called it or ended. Kernels before
// this one are done by then if each thread that calls it has called AwaitPrevious, or if this one
// was launched without overlaps_previous.
__device__ __forceinline__ void AwaitPrevious() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}
__device__ __forceinline__ void LetNextBegin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

// Copies 16 bytes to shared memory asynchronously; zeros if !valid (the source is not read then).
// PTX ISA, "cp.async": the src-size operand.
__device__ __forceinline__ void CpAsync16(uint32_t shared, const void* global, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(shared),
               "l"(global), "r"(bytes));
}
// What leaves the L2 cache first, and what leaves it as all else does: the policies that
// "createpolicy" would give (PTX ISA), which takes long. CUTLASS has them as CacheHintSm90.
inline constexpr uint64_t kEvictFirst = 0x12F0000000000000, kEvictNormal = 0x1000000000000000;
// CpAsync16 of what is read once, which leaves the L2 cache first. For sm_90.
__device__ __forceinline__ void CpAsync16Once(uint32_t shared, const void* global, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile(
      "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;\n" ::"r"(shared),
      "l"(global), "r"(bytes), "l"(kEvictFirst));
}
// CpAsync16 for 8 bytes, which must be valid.
__device__ __forceinline__ void CpAsync8(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;\n" ::"r"(shared), "l"(global));
}
__device__ __forceinline__ void CpAsyncCommit() { asm volatile("cp.async.commit_group;\n"); }
// Waits until at most kPending of the newest groups are still on their way.
template <int kPending>
__device__ __forceinline__ void CpAsyncWait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void PrefetchL2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];\n" ::"l"(global));
}

// Number i of an array of int32, or of int64 if `wide`; without an access 0, if !there. It has no
// branch: so of several all are on their way at once, where the compiler would wait for each. As
// other volatile code it stays behind AwaitPrevious.
__device__ __forceinline__ int64_t LoadIndexIf(bool there, const void* data, bool wide, int i) {
  const char* const from = static_cast<const char*>(data) + (int64_t{i} << (wide ? 3 : 2));
  int64_t x;
  asm volatile(
      "{\n"
      ".reg .pred is_wide, is_narrow;\n"
      ".reg .b32 narrow;\n"
      ".reg .b64 wide;\n"
      "setp.ne.b32 is_wide, %2, 0;\n"
      "setp.ne.b32 is_narrow, %3, 0;\n"
      "mov.b32 narrow, 0;\n"
      "mov.b64 wide, 0;\n"
      "@is_narrow ld.global.b32 narrow, [%1];\n"
      "@is_wide ld.global.b64 wide, [%1];\n"
      "cvt.s64.s32 %0, narrow;\n"
      "@is_wide mov.b64 %0, wide;\n"
      "}\n"
      : "=l"(x)
      : "l"(from), "r"(int{there && wide}), "r"(int{there && !wide}));
  return x;
}

// 16 bytes that are read once.
__device__ __forceinline__ uint4 LoadOnce16(const void* from) {
  uint4 x;
  asm("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n"
      : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
      : "l"(from));
  return x;
}

// The same of 8 bytes.
__device__ __forceinline__ uint2 LoadOnce8(const void* from) {
  uint2 x;
  asm("ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2];\n"
      : "=r"(x.x), "=r"(x.y)
      : "l"(from));
  return x;
}

// 16 bytes that another GPU may write or read, past the caches that it does not see; no order with
// other accesses. PTX ISA, "Memory Consistency Model": .relaxed.sys.
__device__ __forceinline__ uint4 LoadFromPeer16(const void* global) {
  uint4 x;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(global)
               : "memory");
  return x;
}
__device__ __forceinline__ void StoreToPeer16(void* global, const uint4& x) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"l"(global), "r"(x.x),
               "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
}

// Four 8x8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void LdMatrix4(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared));
}
__device__ __forceinline__ void LdMatrix4Transposed(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared));
}

// x y + z of a pair of numbers, rounded once.
__device__ __forceinline__ uint32_t FmaF16(uint32_t x, uint32_t y, uint32_t z) {
  uint32_t r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z));
  return r;
}
__device__ __forceinline__ uint32_t FmaBF16(uint32_t x, uint32_t y, uint32_t z) {
  uint32_t r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z));
  return r;
}

// c[16x8] += a[16x16] b[16x8], accumulated in f32. Fragment layouts: PTX ISA, "mma.m16n8k16".
__device__ __forceinline__ void MmaF16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                       uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void MmaBF16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// c[16x8] += a[16x32] b[32x8]. Layouts: PTX ISA, "mma.m16n8k32".
__device__ __forceinline__ void MmaE4M3(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The same of int8, exactly.
__device__ __forceinline__ void MmaS8(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                      uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, {%0, %1, %2, %3};\n"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// c[16x8] += a[16x8] b[8x8] in tf32. Layouts: PTX ISA, "mma.m16n8k8", .tf32.
__device__ __forceinline__ void MmaTf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ uint32_t ToTf32(float x) {
  uint32_t r;
  asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(r) : "f"(x));
  return r;
}

// Four numbers to the nearest in e4m3, at most 448, the first one lowest.
__device__ __forceinline__ uint32_t ToE4M3x4(float x0, float x1, float x2, float x3) {
  uint32_t codes;
  asm("{\n.reg .b16 low, high;\ncvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\nmov.b32 %0, {low, high};\n}\n"
      : "=r"(codes)
      : "f"(x0), "f"(x1), "f"(x2), "f"(x3));
  return codes;
}

// A barrier among some warps of a block: those that call it with `id` > 0 go on when `threads`
// have. What a thread wrote before it is seen by the others behind it.
__device__ __forceinline__ void BarrierSync(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

// The same; returns whether any thread's `mine` is set.
__device__ __forceinline__ bool BarrierOr(int id, int threads, bool mine) {
  uint32_t any;
  asm volatile(
      "{\n.reg .pred mine, any;\nsetp.ne.u32 mine, %3, 0;\n"
      "barrier.cta.red.or.aligned.pred any, %1, %2, mine;\nselp.u32 %0, 1, 0, any;\n}\n"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<uint32_t>(mine))
      : "memory");
  return any != 0;
}

// Adds to two neighboring numbers, 8 bytes aligned.
__device__ __forceinline__ void AtomicAdd2(float* to, float x, float y) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};\n" ::"l"(to), "f"(x), "f"(y)
               : "memory");
#else
  atomicAdd(to, x);
  atomicAdd(to + 1, y);
#endif
}

__device__ __forceinline__ int32_t LoadAcquire(const int32_t* from) {
  int32_t x;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n" : "=r"(x) : "l"(from) : "memory");
  return x;
}

// 2^x, to 2 ulp; 2^-inf = 0.
__device__ __forceinline__ float Exp2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(r) : "f"(x));
  return r;
}
// The logarithm to base 2 of a normal number, to an error of 2^-22, or as much of the result.
__device__ __forceinline__ float Log2(float x) {
  float r;
  asm("lg2.approx.ftz.f32 %0, %1;\n" : "=f"(r) : "f"(x));
  return r;
}

}  // namespace intarsia::cuda
