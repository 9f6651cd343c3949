// Which kernel makes a product of codes: a pure function of its shapes and of the GPU. Checks take
// the kernels one by one.
#pragma once
#include <string_view>
#include <vector>

#include "src/core/cuda/device.h"
#include "src/core/cuda/report.h"
#include "src/matmul/scaled.h"

namespace intarsia::matmul {

enum class ScaledKernel {
  kWarpgroups,  // Hopper's: tiles by TMA, products by wgmma
  kStream,      // codes of w from memory straight into registers: for few rows
  kTiles,       // both in shared memory: takes every call
};
inline constexpr ScaledKernel kScaledKernels[] = {ScaledKernel::kWarpgroups, ScaledKernel::kStream,
                                                  ScaledKernel::kTiles};
// In reports.
std::string_view Name(ScaledKernel kernel);

// Whether a kernel can run the call at all, fast or not.
bool CanRun(ScaledKernel kernel, const ScaledParams& params, const cuda::Device& device);
ScaledKernel Choose(const ScaledParams& params, const cuda::Device& device);
Status Launch(const ScaledParams& params, const CudaContext& context, ScaledKernel kernel);
std::vector<cuda::KernelChoice> ReportScaledChoices(const cuda::Device& device);

// Rows of x of the kernel that streams.
inline constexpr int kMostStreamedRows = 16;

// Tiles in the order in which CTAs take them: some tiles of rows side by side, with all columns,
// so that those in flight together share rows of x and of w in the L2 cache.
struct ScaledTiles {
  static constexpr int64_t kTogether = 8;
  int64_t row_tiles, column_tiles;

  struct Place {
    int64_t row_tile, column_tile;
  };
  INTARSIA_HOST_DEVICE constexpr int64_t count() const { return row_tiles * column_tiles; }
  INTARSIA_HOST_DEVICE constexpr Place At(int64_t index) const {
    const int64_t first = index / (kTogether * column_tiles) * kTogether;
    const int64_t rows = row_tiles - first < kTogether ? row_tiles - first : kTogether;
    const int64_t in_group = index - first * column_tiles;
    return {first + in_group % rows, in_group / rows};
  }
};

// Of S::kRows rows of x and S::kColumns rows of w.
template <class S>
INTARSIA_HOST_DEVICE constexpr ScaledTiles TilesOf(const ScaledParams& p) {
  return {CeilDiv<int64_t>(p.m, S::kRows), CeilDiv<int64_t>(p.n, S::kColumns)};
}

}  // namespace intarsia::matmul
