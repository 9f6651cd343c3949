// Products by wgmma of codes in registers, which are A, with rows of x in panels, which are B.
#pragma once
#include "src/core/cuda/wgmma.cuh"

namespace intarsia::matmul::sm90 {

// Keeps the compiler from decoding between products that follow.
template <int kSteps>
__device__ __forceinline__ void FinishDecoding(uint32_t (&a)[kSteps][4]) {
#pragma unroll
  for (auto& of_step : a)
#pragma unroll
    for (uint32_t& pair : of_step) asm volatile("" : "+r"(pair)::"memory");
}

// Of kCount steps of 16 columns from kFirst on, in flight afterwards. x: panels of kRows rows, of
// which 2 kSums are multiplied; a(step): A. Sums are replaced without kAdd.
template <class T, int kRows, int kFirst, int kCount, bool kAdd, class A, int kSums>
__device__ __forceinline__ void MultiplySteps(const char* x, A a, float (&sums)[kSums]) {
  using M = cuda::Wgmma<2 * kSums>;
  const uint64_t rows = cuda::ColumnsSummed(cuda::SharedAddress(x));
  cuda::WgmmaFence();
#pragma unroll
  for (int step = kFirst; step < kFirst + kCount; ++step) {
    const uint64_t of_step = rows + cuda::ColumnStepBytes(kRows, step) / 16;
    if (kAdd || step > kFirst)
      M::template RegistersColumns<T, true>(sums, a(step), of_step);
    else
      M::template RegistersColumns<T, false>(sums, a(step), of_step);
  }
  cuda::WgmmaCommit();
}

}  // namespace intarsia::matmul::sm90
