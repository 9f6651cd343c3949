// Blocks of a cluster, from sm_90 on. On older GPUs a block is alone.
#pragma once
#include <cstdint>

#include "src/core/cuda/ptx.cuh"

namespace intarsia::cuda {

// Whether this code knows clusters: that for older GPUs, compiled from PTX for a newer one, does
// not.
__device__ constexpr bool HasClusters() {
#if __CUDA_ARCH__ >= 900
  return true;
#else
  return false;
#endif
}

// Which block of its cluster this one is, and how many there are.
__device__ __forceinline__ int ClusterRank() {
  uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
#endif
  return static_cast<int>(rank);
}
__device__ __forceinline__ int ClusterSize() {
  uint32_t size = 1;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_nctarank;\n" : "=r"(size));
#endif
  return static_cast<int>(size);
}

// Waits for all threads of the cluster, and sees what they wrote to shared memory.
__device__ __forceinline__ void ClusterSync() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::
                   : "memory");
#endif
}

// Waits for all threads of the cluster, whose reads of each other's shared memory are done.
__device__ __forceinline__ void ClusterSyncReads() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;\n" ::
                   : "memory");
#endif
}

// *pointer, which points into shared memory, in the block of this rank.
__device__ __forceinline__ float LoadFromBlock(const float* pointer, int rank) {
#if __CUDA_ARCH__ >= 900
  uint32_t address;
  float x;
  asm("mapa.shared::cluster.u32 %0, %1, %2;\n"
      : "=r"(address)
      : "r"(SharedAddress(pointer)), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];\n" : "=f"(x) : "r"(address) : "memory");
  return x;
#else
  return *pointer;
#endif
}

// The same of four neighbors, 16 bytes aligned.
__device__ __forceinline__ float4 LoadFromBlock(const float4* pointer, int rank) {
#if __CUDA_ARCH__ >= 900
  uint32_t address;
  float4 x;
  asm("mapa.shared::cluster.u32 %0, %1, %2;\n"
      : "=r"(address)
      : "r"(SharedAddress(pointer)), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];\n"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(address)
               : "memory");
  return x;
#else
  return *pointer;
#endif
}

}  // namespace intarsia::cuda
