// Rows of arrays between global and shared memory, by one warp.
#pragma once
#include "src/core/cuda/eight.cuh"
#include "src/core/cuda/ptx.cuh"

namespace intarsia::cuda {

// As CopyRows, element by element; `load` gives eight, and may convert them. kWarps warps share the
// rows: this one is number `warp` of them.
template <class Rows, int kCount, class T, int kWarps = 1, class Load>
__device__ __forceinline__ void CopyRowsThroughRegisters(char* target, int64_t offset,
                                                         uint32_t exist, int d, Load load,
                                                         int warp = 0) {
  constexpr int kParts = Rows::kRowBytes / static_cast<int>(8 * sizeof(T));  // of a row
#pragma unroll 2
  for (int i = 32 * warp + threadIdx.x % 32; i < kCount * kParts; i += 32 * kWarps) {
    const int row = i / kParts, column = i % kParts * 8;
    const int64_t from = __shfl_sync(0xffffffffu, offset, row) + column;
    Eight<T> values = {};
    if ((exist >> row & 1) && column < d) values = load(from);
    StoreEight<Rows>(target, row, column, values);
  }
}

// Copies kCount rows to shared memory at `target`, asynchronously if all rows are aligned. Lane i
// says how far from `source` row i begins, and bit i of `exist` whether it does; other rows, and
// columns from d on, become zeros, so that no rubbish in the array, a NaN say, ever enters a
// product.
template <class Rows, int kCount, class T>
__device__ __forceinline__ void CopyRows(char* target, const T* source, int64_t offset,
                                         uint32_t exist, int d, bool aligned) {
  constexpr int kElements = 16 / static_cast<int>(sizeof(T));
  constexpr int kLanes = Rows::kUnits % 8 == 0 ? 8 : 4;  // that share a row
  constexpr int kPassRows = 32 / kLanes;
  static_assert(kCount % kPassRows == 0);
  const int lane = threadIdx.x % 32;
  if (aligned) {
    const int lane_row = lane / kLanes, lane_unit = lane % kLanes;
    const uint32_t to = SharedAddress(target) + Rows::Offset(lane_row, lane_unit);
    const T* const lane_source = source + lane_unit * kElements;
    const auto offset_units = static_cast<uint32_t>(offset / kElements);
#pragma unroll
    for (int pass = 0; pass < kCount / kPassRows; ++pass) {
      const int row = pass * kPassRows + lane_row;
      const T* const from =
          lane_source + int64_t{kElements} * __shfl_sync(0xffffffffu, offset_units, row);
      // Four rows on, another bit of the row number enters the swizzle.
      const uint32_t pass_to =
          (kPassRows == 4 && pass % 2 ? to ^ 64 : to) + pass * kPassRows * Rows::kRowBytes;
#pragma unroll
      for (int unit = 0; unit < Rows::kUnits; unit += kLanes) {
        CpAsync16(pass_to + unit * 16, from + unit * kElements,
                  (exist >> row & 1) && (lane_unit + unit) * kElements < d);
      }
    }
  } else {
    CopyRowsThroughRegisters<Rows, kCount, T>(target, offset, exist, d, [&](int64_t index) {
      return LoadEight<T>(source, index, false);
    });
  }
}

// The way back: row i goes to lane i's offset from `target`, or nowhere if that is -1.
template <class Rows, int kCount, class T>
__device__ __forceinline__ void StoreRows(T* target, const char* source, int64_t offset, int d,
                                          bool aligned) {
  constexpr int kElements = 16 / static_cast<int>(sizeof(T));
  constexpr int kUnits = kCount * Rows::kUnits;
  const int lane = threadIdx.x % 32;
#pragma unroll 4
  for (int i = lane; i < kUnits; i += 32) {
    const int row = i / Rows::kUnits, unit = i % Rows::kUnits;
    const int64_t to = __shfl_sync(0xffffffffu, offset, row);
    if (to < 0 || unit * kElements >= d) continue;
    const auto values = *reinterpret_cast<const Vec<T>*>(source + Rows::Offset(row, unit));
    T* const unit_target = target + to + unit * kElements;
    if (aligned) {
      *reinterpret_cast<Vec<T>*>(unit_target) = values;
    } else {
#pragma unroll
      for (int e = 0; e < kElements; ++e) unit_target[e] = values.at[e];
    }
  }
}

}  // namespace intarsia::cuda
