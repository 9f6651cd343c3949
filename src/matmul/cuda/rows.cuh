// What the kernels of all architectures do with rows of x and of the results.
#pragma once
#include "src/core/cuda/vec.cuh"
#include "src/matmul/cuda/units.cuh"

namespace intarsia::matmul {

// The row of x that row `row` of the results takes, or -1.
__device__ __forceinline__ int64_t RowTaken(const IndexVector& rows, int64_t x_rows, int row) {
  if (!rows.data) return row;
  const int64_t taken = rows.At(row);
  return taken >= 0 && taken < x_rows ? taken : -1;
}
__device__ __forceinline__ int64_t RowTaken(const GroupedParams& p, int row) {
  return RowTaken(p.rows, p.x_rows, row);
}

// out[index], out[index + 1] = x, y as far as there are columns for them.
__device__ __forceinline__ void StorePair(void* out, DType dtype, int64_t index, int columns,
                                          float x, float y) {
  const auto store = [&]<class T>(T* to) {
    if (columns > 1 && reinterpret_cast<uintptr_t>(to) % (2 * sizeof(T)) == 0) {
      *reinterpret_cast<cuda::Pack<T, 2>*>(to) = cuda::FromFloats<T>(cuda::Pack<float, 2>{{x, y}});
    } else {
      if (columns > 0) to[0] = cuda::FromFloat<T>(x);
      if (columns > 1) to[1] = cuda::FromFloat<T>(y);
    }
  };
  if (dtype == DType::kF32)
    store(static_cast<float*>(out) + index);
  else if (dtype == DType::kF16)
    store(static_cast<__half*>(out) + index);
  else
    store(static_cast<__nv_bfloat16*>(out) + index);
}

// Zeros in rows of no group, by the first `threads` of the block; `out` has rows of n elements.
__device__ __forceinline__ void ClearRows(void* out, DType dtype, int n, const Unit& unit,
                                          int first_column, int columns,
                                          int threads = static_cast<int>(blockDim.x)) {
  const int end = min(columns, n - first_column);
  for (int i = static_cast<int>(threadIdx.x); i < unit.rows * columns; i += threads) {
    const int column = i % columns, row = unit.RowOfNoGroup(unit.row + i / columns);
    if (column < end)
      StorePair(out, dtype, int64_t{row} * n + first_column + column, 1, 0.0f, 0.0f);
  }
}
__device__ __forceinline__ void ClearRows(const GroupedParams& p, const Unit& unit,
                                          int first_column, int columns) {
  ClearRows(p.out, p.out_dtype, static_cast<int>(p.columns()), unit, first_column, columns);
}

}  // namespace intarsia::matmul
