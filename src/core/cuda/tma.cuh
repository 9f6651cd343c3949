// Copies by the copy engine (TMA) of sm_90, the barriers that they complete on, and the registers
// that warpgroups trade.
#pragma once
#include <cuda.h>

#include <cstdint>
#include <cuda/ptx>

#include "src/core/cuda/ptx.cuh"
#include "src/core/cuda/ring_place.h"

namespace intarsia::cuda {

// A barrier in shared memory whose phases are counted by their parity: a phase ends when `count`
// threads have arrived and the bytes that they expect have come. PTX ISA, "mbarrier".
class Barrier {
 public:
  __device__ __forceinline__ void Init(int count) {
    ::cuda::ptx::mbarrier_init(&state_, static_cast<uint32_t>(count));
  }
  __device__ __forceinline__ void Arrive() {
    (void)::cuda::ptx::mbarrier_arrive(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta,
                                       ::cuda::ptx::space_shared, &state_);
  }
  // For so many threads.
  __device__ __forceinline__ void Arrive(int threads) {
    (void)::cuda::ptx::mbarrier_arrive(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta,
                                       ::cuda::ptx::space_shared, &state_,
                                       static_cast<uint32_t>(threads));
  }
  __device__ __forceinline__ void ArriveExpecting(int bytes) {
    (void)::cuda::ptx::mbarrier_arrive_expect_tx(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta,
                                                 ::cuda::ptx::space_shared, &state_,
                                                 static_cast<uint32_t>(bytes));
  }
  // Waits for the end of the phase of this parity. The phase before the first one has parity 1 and
  // has ended.
  __device__ __forceinline__ void Wait(uint32_t parity) {
    while (!::cuda::ptx::mbarrier_try_wait_parity(&state_, parity)) {
    }
  }
  // Whether that phase has ended.
  __device__ __forceinline__ bool Ended(uint32_t parity) {
    return ::cuda::ptx::mbarrier_test_wait_parity(&state_, parity);
  }
  __device__ __forceinline__ uint64_t* address() { return &state_; }

 private:
  uint64_t state_;
};

// Makes barriers that this thread initialized known to the copy engine.
__device__ __forceinline__ void PublishBarriers() {
  ::cuda::ptx::fence_mbarrier_init(::cuda::ptx::sem_release, ::cuda::ptx::scope_cluster);
}
// Orders this thread's ordinary accesses to shared memory before later ones by wgmma and TMA.
__device__ __forceinline__ void FenceForAsyncReads() {
  ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
}

// Copies one box of a tensor to shared memory, a panel's rows; `barrier` counts its bytes.
template <int kAxes>
__device__ __forceinline__ void CopyBox(void* shared, const CUtensorMap& map,
                                        const int32_t (&coordinates)[kAxes], Barrier& barrier) {
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, shared,
                                    &map, coordinates, barrier.address());
}
// CopyBox whose bytes, if they are read `once`, leave the L2 cache first: so a stream that is
// larger than the cache drives out neither code nor what others read again.
template <int kAxes>
__device__ __forceinline__ void CopyBox(void* shared, const CUtensorMap& map,
                                        const int32_t (&at)[kAxes], Barrier& barrier, bool once) {
  static_assert(kAxes >= 3 && kAxes <= 5);
  const uint32_t to = SharedAddress(shared), count = SharedAddress(barrier.address());
  const uint64_t policy = once ? kEvictFirst : kEvictNormal;
  if constexpr (kAxes == 3)
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;\n" ::"r"(to),
        "l"(&map), "r"(count), "r"(at[0]), "r"(at[1]), "r"(at[2]), "l"(policy)
        : "memory");
  else if constexpr (kAxes == 4)
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;\n" ::"r"(to),
        "l"(&map), "r"(count), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "l"(policy)
        : "memory");
  else
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;\n" ::"r"(to),
        "l"(&map), "r"(count), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]),
        "l"(policy)
        : "memory");
}
// Copies neighboring bytes, a multiple of 16 as both addresses are, to shared memory.
__device__ __forceinline__ void CopyBytes(void* shared, const void* from, int bytes,
                                          Barrier& barrier) {
  ::cuda::ptx::cp_async_bulk(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, shared, from,
                             static_cast<uint32_t>(bytes), barrier.address());
}
// Fetches a map ahead of its first use.
__device__ __forceinline__ void PrefetchMap(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// The registers of a thread from here on, for all warps of a warpgroup. PTX ISA, "setmaxnreg".
template <int kCount>
__device__ __forceinline__ void ReleaseRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Arrives at barrier `id` of a block without waiting; `threads` counts those that arrive and those
// that wait (ptx.cuh: BarrierSync).
__device__ __forceinline__ void BarrierArrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Four 8x8 matrices of 16-bit elements to shared memory; lane i gives the address of row i % 8 of
// matrix i / 8.
__device__ __forceinline__ void StMatrix4(uint32_t shared, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
// The same, each matrix transposed: what a lane has of row r goes to column r.
__device__ __forceinline__ void StMatrix4Transposed(uint32_t shared, const uint32_t (&r)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
}

}  // namespace intarsia::cuda
