// Which kernel makes a grouped product: a pure function of its shapes and of the GPU, since a
// captured graph replays the choice. Sizes of groups are on the device alone; what a choice goes by
// is the mean.
#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include "src/core/cuda/report.h"
#include "src/core/round.h"
#include "src/matmul/grouped.h"

namespace intarsia::matmul {

// Warps of a CTA of the tiled kernels, two by two. Stages of their pipeline.
inline constexpr int kTileWarps = 4, kTileStages = 3;
// Bytes of a row of x, or of transposed w, in a stage: 64 elements of 16 bits along the sum.
inline constexpr int kDepthBytes = 128;
// Columns of a CTA of the streaming kernel.
inline constexpr int kStreamColumns = 64;
inline constexpr int kStreamRows = 8;  // N of mma
// Row tiles of a group whose CTAs follow each other, so that weights stay in the L2 cache.
inline constexpr int kTilesTogether = 8;

constexpr int TileColumns(DType dtype) { return dtype == DType::kF32 ? 64 : 128; }
constexpr int TileSharedBytes(DType dtype, int rows) {
  return kTileStages * (rows + TileColumns(dtype)) * kDepthBytes;
}
// Partial sums of each warp; one float more a row, for the banks.
constexpr int StreamSharedBytes(int warps) {
  return warps * kStreamRows * (kStreamColumns + 1) * static_cast<int>(sizeof(float));
}

// The tiles of rows that groups can need, and one for each tile of rows of no group: a group's last
// tile may be half empty, and no tile is without a row.
constexpr int64_t MostTiles(int64_t m, int64_t groups, int tile_rows) {
  return std::min(m, m / tile_rows + groups + 1);
}

enum class GroupedKernel {
  kTiles,       // rows and columns in shared memory: for many rows of a group
  kStream,      // weights from memory straight into registers: for few
  kWarpgroups,  // Hopper's: tiles by TMA, products by wgmma
};

struct GroupedCandidate {
  const char* name;  // in reports
  int arch;
  GroupedKernel kernel;
  int rows;  // of a tile
  bool (*fits)(const GroupedParams&, const cuda::Device&);
};

struct GradientCandidate {
  const char* name;  // in reports
  int arch;
  bool (*fits)(const GroupedGradientParams&, const cuda::Device&);
};

// The best first. Tests and checks take them one by one.
std::span<const GroupedCandidate> GroupedCandidates();
std::span<const GradientCandidate> GradientCandidates();

// The first that takes the call on the device; null if none does, as with a gating where groups
// have many rows or w is not transposed.
const GroupedCandidate* Choose(const GroupedParams& params, const cuda::Device& device);
const GradientCandidate* Choose(const GroupedGradientParams& params, const cuda::Device& device);

// Whether a candidate can run the call at all, fast or not.
bool CanRun(const GroupedCandidate& candidate, const GroupedParams& params,
            const cuda::Device& device);
bool CanRun(const GradientCandidate& candidate, const GroupedGradientParams& params,
            const cuda::Device& device);

// Warps that share the sum of a CTA of the streaming kernel: as many as fill the GPU.
int StreamWarps(const GroupedParams& params, const cuda::Device& device);

std::vector<cuda::KernelChoice> ReportGroupedChoices(const cuda::Device& device);

}  // namespace intarsia::matmul
