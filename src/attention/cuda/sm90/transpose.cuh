// V in e4m3: wgmma takes a B of 8-bit elements only with neighboring keys in neighboring bytes, and
// a cache has neighboring columns there. So a producer warp transposes each tile, as
// FlashAttention-3 does (Shah et al. 2024, arXiv:2407.08608, section 3.3).
//
// ldmatrix.trans hands out pairs of columns of 16 keys: lane 4 c + j gets columns 2 c and 2 c + 1
// of keys 2 j, 2 j + 1, 2 j + 8 and 2 j + 9. Sorted into a register for either column, its four
// keys go to bytes 4 j ... 4 j + 3. A consumer's lane has the weights of just these keys, so that
// weights become operand A without a shuffle (ToCodes in fp8.cuh).
#pragma once
#include "src/attention/cuda/sm90/fp8.cuh"
#include "src/attention/cuda/sm90/producer.cuh"
#include "src/core/cuda/ptx.cuh"

namespace intarsia::attention::sm90 {

// A tile of keys, of 128 bytes a row, to one panel of kDv rows; a warp together.
template <class S>
__device__ __forceinline__ void TransposeTile(uint32_t from, uint32_t to) {
  const int lane = static_cast<int>(threadIdx.x) % 32, matrix = lane / 8, row = lane % 8;
  // Matrix m: keys 8 (m % 2) ... of 16, columns 16 (m / 2) ... of 32; then rows of the result.
  const uint32_t read = from + (matrix % 2 * 8 + row) * cuda::kPanelRowBytes;
  const int stored = TransposedRow(2 * row);
  const uint32_t write = to + (matrix / 2 * 16 + matrix % 2 * 8 + stored) * cuda::kPanelRowBytes;
  // Loads go ahead of stores, for their latency; the compiler may not exchange the two.
  constexpr int kLoads = 8, kUnits = S::kDv / 32, kKeys = kLoads / kUnits;
#pragma unroll 1
  for (int first = 0; first < S::kTileKeys / 16; first += kKeys) {
    uint32_t pairs[kLoads][4];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int keys = first + i / kUnits, unit = i % kUnits * 2 + matrix / 2;
      cuda::LdMatrix4Transposed(pairs[i],
                                read + keys * 16 * cuda::kPanelRowBytes + (unit ^ row) * 16);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int keys = first + i / kUnits, columns = i % kUnits * 32;
      const uint32_t(&x)[4] = pairs[i];
      cuda::StMatrix4(write + columns * cuda::kPanelRowBytes + (keys ^ stored) * 16,
                      {__byte_perm(x[0], x[1], 0x6420), __byte_perm(x[0], x[1], 0x7531),
                       __byte_perm(x[2], x[3], 0x6420), __byte_perm(x[2], x[3], 0x7531)});
    }
  }
}

template <class S>
__device__ __forceinline__ void TransposeValues(const LaunchPlan& plan, Shared<S>& shared) {
  cuda::RingPlace<S::kRawStages> raw;
  cuda::RingPlace<S::kValueStages> v;
  ForEachTask(shared, [&](const Task& task) {
    int first_key = task.keys.last_key;
    for (int left = task.keys.count; left > 0; --left, first_key -= S::kTileKeys) {
      char* const tile = shared.fp8.raw[raw.index];
      shared.raw_full[raw.index].Wait(raw.parity);
      const StrayRows stray = StrayRowsOf(first_key, task.first_visible, task.sequence.len_k,
                                          S::kTileKeys, plan.box_rows);
      if (stray.any()) {
        ClearRows<S>(tile, 0, stray.head);
        ClearRows<S>(tile, stray.tail, stray.tail_end);
        __syncwarp();
      }
      shared.v_empty[v.index].Wait(v.parity ^ 1);
      TransposeTile<S>(cuda::SharedAddress(tile), cuda::SharedAddress(shared.v[v.index]));
      cuda::FenceForAsyncReads();  // and before the copy engine writes where rows were cleared
      shared.v_full[v.index].Arrive();
      shared.raw_empty[raw.index].Arrive();
      raw.Next();
      v.Next();
    }
  });
}

}  // namespace intarsia::attention::sm90
