// Rows of x and of the results in products of groups with weights in codes, the same for kernels of
// all architectures.
#pragma once
#include "src/matmul/cuda/choose.h"
#include "src/matmul/cuda/rows.cuh"
#include "src/matmul/quantized.h"

namespace intarsia::matmul {

// Finds units of a call; a warp together. by_id: a row of the results is a unit's only one.
template <int kRows>
class RowsFinder {
 public:
  __device__ __forceinline__ RowsFinder(const QuantizedGroupsParams& p, int column_tiles)
      : p_(p), column_tiles_(column_tiles), units_(p.groups, column_tiles) {}

  // Unit `index` of all, in each lane. rows 0: there is none, or, by_id, no matrix for it; by_id
  // the index is below Units().
  __device__ __forceinline__ Unit Find(int64_t index) const {
    if (!p_.by_id.share) return units_.Find(index);
    const int row = static_cast<int>(index / column_tiles_);
    const int tile = static_cast<int>(index % column_tiles_);
    const auto group = static_cast<int>(p_.by_id.Of(row, p_.groups.count));
    if (p_.by_id.places && tile == 0 && threadIdx.x % 32 == 0)
      p_.by_id.places[row] = group < 0 ? -1 : row;
    return {group, row, group < 0 ? 0 : 1, tile, 0, 0};
  }
  __device__ __forceinline__ int64_t Units() const {
    return p_.by_id.share ? p_.groups.m * column_tiles_ : units_.Units();
  }

 private:
  const QuantizedGroupsParams& p_;
  const int column_tiles_;
  const UnitFinder<EqualTiles<kRows>, kTilesTogether> units_;
};

// The row of x that row `row` of the results takes, or -1.
__device__ __forceinline__ int64_t RowTaken(const QuantizedGroupsParams& p, int row) {
  return p.by_id.share ? row / p.by_id.share : RowTaken(p.each.rows, p.x_rows, row);
}

}  // namespace intarsia::matmul
