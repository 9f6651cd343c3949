// How a product with weights in codes is cut into CTAs: a pure function of shapes and of the GPU,
// since a captured graph replays the choice.
#pragma once
#include <string_view>
#include <vector>

#include "src/core/cuda/device.h"
#include "src/core/cuda/report.h"
#include "src/matmul/quantized.h"

namespace intarsia::matmul {

inline constexpr int kMostWarps = 8;  // of a CTA
// The most shared memory that a CTA may have on every GPU from sm_80 on.
inline constexpr int kMostSharedBytes = 96 * 1024;

// What kernels are instances of.
struct QuantizedShape {
  int rows;   // of x: 1, 8, or a multiple of 16
  int tiles;  // of w, of a warp; of kWarpgroups: of a CTA
  constexpr int stages() const { return rows == 8 ? 4 : 3; }
  bool operator==(const QuantizedShape&) const = default;
};

// kAny: codes, factors and x through shared memory, for groups of any kind. kStream and
// kWideStream: codes from memory right into registers, with groups that end with a block of 32
// columns, or with a stage.
// kRow: up to 8 rows of x for the same groups, and for nvfp4; one row is normed first where it has
// to be.
// kResident and kWideResident: the same groups, with few rows of x in shared memory as a whole.
// kWarpgroups: the formats of files, by wgmma, or by mma.sync up to 16 rows (sm90/warpgroups.cuh).
// kGroupsHopper: groups of rows, by copies of Hopper's engine (sm90/grouped_codes.cuh has a table
// of formats); kGroupsWarpgroups: by wgmma, for many rows of most of these.
enum class QuantizedKernelKind {
  kAny,
  kStream,
  kWideStream,
  kRow,
  kResident,
  kWideResident,
  kWarpgroups,
  kGroupsHopper,
  kGroupsWarpgroups
};
// In reports.
std::string_view Name(QuantizedKernelKind kernel);

inline constexpr int kMostSplits = 8;  // CTAs of a portable cluster

// Columns that a warp of the streaming kernels takes at a time, and how many times as many its
// registers hold.
constexpr int StreamStageColumns(Format format) { return BitsOf(format) == 4 ? 128 : 64; }
// Zeros take registers for sums of x, and integers without a point of their own have them, as a
// rule.
constexpr bool StreamsZeros(Format format) { return format == Format::kU4; }
// Rows of x of a CTA, where there are many: what registers have room for.
constexpr int StreamMostRows(Format format, QuantizedKernelKind kernel) {
  const bool wide = kernel == QuantizedKernelKind::kWideStream;
  return StreamsZeros(format) ? (wide ? 32 : 16) : wide ? 64 : 32;
}
constexpr int StreamStages(int rows) { return rows == 8 ? 3 : 2; }

// Of the resident kernels: warps of a CTA, pieces of 128 columns of a tile in a warp's ring, what
// rows of x and of sums are apart for the banks, and a CTA's shared memory on Hopper.
inline constexpr int kMostResidentWarps = 16;
constexpr int ResidentDepth(Format format, int rows) {
  return BitsOf(format) == 4 ? (rows == 8 ? 8 : 6) : rows == 8 ? 5 : 4;
}
inline constexpr int kResidentPad = 64, kResidentPitch = static_cast<int>(kTileRows) + 4;
inline constexpr int kMostResidentBytes = cuda::MostSharedBytes(cuda::kHopper);
inline constexpr int kMostResidentRows = 16;  // of x

// Of kRow: warps of a CTA, those that share a tile, and those that a multiprocessor has registers
// for; dynamic shared memory, of which each GPU has room for two CTAs with one row, and for one CTA
// with more rows, beside sums of 8 KB.
inline constexpr int kLeastRowWarps = 8, kMostRowWarps = 16, kMostRowParts = 8;
inline constexpr int kRowWarpsAtOnce = 16;
constexpr int MostRowBytes(int64_t rows) { return (rows == 1 ? 46 : 90) * 1024; }

// Of kWarpgroups: rows of x that mma.sync multiplies; tiles of w of a CTA, with up to 16 rows, and
// two kinds with more; CTAs that a multiprocessor has room for, while splits give a launch at
// most 1.7, so that the next launch's are there when this one's end. `parts`, plan.k_warps: of
// warpgroups that take stages in turn.
inline constexpr int kMostRowsByWarps = 16;
inline constexpr int kFewRowsTiles = 8, kNarrowTiles = 12, kWideTiles = 16;
constexpr int WarpgroupsCtas(int rows, int parts, Format format) {
  if (rows > kMostRowsByWarps) return 1;
  return parts > 1 ? 2 : BitsOf(format) == 8 ? 3 : 4;
}
// The fewest parts that a kernel of few rows has, one or two: where registers would leave room for
// three CTAs of one, two parts are always faster. `wide`: whether groups end with a stage.
constexpr int LeastParts(int rows, Format format, bool wide) {
  const bool minimums = format == Format::kU4 && !wide;
  return rows > 8 && (minimums || BitsOf(format) == 5 || BitsOf(format) == 6) ? 2 : 1;
}

// Of kGroupsHopper: the shape for few units, and those of 8, 16 and 32 rows, by the rows of a group
// in the mean; more than 4 bits have half as many tiles, each larger, and one shape of 8 rows, and
// so have those whose minimums are in f16. Then warps of a CTA, CTAs of a multiprocessor, stages in
// flight; bytes of scales of a tile and a stage.
inline constexpr QuantizedShape kFewUnits{8, 2};
constexpr QuantizedShape GroupsHopperShape(int rows, Format format, bool in_f16 = false) {
  return {rows, BitsOf(format) > 4 || in_f16 ? 2 : 4};
}
inline constexpr int kGroupsHopperWarps = 4;
constexpr int GroupsHopperCtas(QuantizedShape shape, Format format) {
  return shape == kFewUnits && BitsOf(format) < 8 ? 4 : shape.rows == 32 ? 2 : 3;
}
constexpr int GroupsHopperStages(QuantizedShape shape, Format format) {
  const int64_t bits = BitsOf(format);
  return shape == kFewUnits ? (bits == 4 ? 4 : 3) : bits == 5 || bits == 6 ? 4 : 3;
}
constexpr int MostStageScaleBytes(Format format, GroupEnds ends) {
  const bool bytes = format == Format::kE2M1 || format == Format::kU4 || format == Format::kU5;
  return ends == GroupEnds::kEach128 || (ends == GroupEnds::kEach32 && bytes) ? 64 : 128;
}

// Of kGroupsWarpgroups: rows of a tile at most, and tiles of w.
inline constexpr QuantizedShape kFewWarpgroupsRows{32, 16}, kManyWarpgroupsRows{96, 12};

struct QuantizedPlan {
  QuantizedKernelKind kernel = QuantizedKernelKind::kAny;
  QuantizedShape shape{};
  // Whether lanes take codes of 16 columns at a time: any groups. Else those of 32, which groups of
  // 32, 64 and multiples of 128 allow: a word a lane, where codes have 4 bits.
  bool fine = true;
  int tile_warps = 1, k_warps = 1;      // warps side by side, and those that share a sum
  int splits = 1;                       // CTAs of a cluster that share a sum
  int stage_groups = 0;                 // groups that a stage can meet
  int scale_bytes = 0, zero_bytes = 0;  // of a group of a tile
  int stage_bytes = 0;                  // of the ring of tile_warps warps
  int shared_bytes = 0;
  // Of the streaming kernels: a chunk of stages whose x and factors are in shared memory, which has
  // two where one is not all; and the rows of x as a power of two.
  int chunk_stages = 0, chunk_bytes = 0, row_shift = 0;
  // Of the resident kernels: CTAs side by side, pieces of a CTA's part of the sum, and the bytes of
  // one in a ring.
  int strips = 0, slice_pieces = 0, slot_bytes = 0;
  bool aligned = false;  // whether operands can be copied 16 bytes at a time

  constexpr int64_t cta_tiles() const { return int64_t{tile_warps} * shape.tiles; }
};

// Whether kernels besides kAny can take the call: aligned rows of 16 bits, and groups of blocks or
// nvfp4.
inline bool HasFastKernels(const QuantizedParams& p, const QuantizedPlan& plan) {
  return plan.kernel != QuantizedKernelKind::kAny ||
         (IsNvFp4(p) && plan.aligned && p.dtype != DType::kF32 && p.k > 0);
}

// Groups of a block, of two, or that end with a stage.
inline bool HasCoarseGroups(const QuantizedParams& p) {
  return p.group == kBlockColumns || p.group == 2 * kBlockColumns || p.group % kStageColumns == 0;
}

// CTAs of a plan, but for its splits.
inline int64_t Ctas(const QuantizedParams& p, const QuantizedPlan& plan) {
  return CeilDiv<int64_t>(p.m, plan.shape.rows) * CeilDiv(p.tiles, plan.cta_tiles());
}

// Rows of x that one launch takes: its tiles of rows are the grid's y, which ends at 65535. More
// rows take several passes.
constexpr int64_t MostRowsOfPass(const QuantizedPlan& plan) { return 65535 * plan.shape.rows; }
// The pass that begins with row `first`: the call, but for its rows.
QuantizedParams PassFrom(const QuantizedParams& params, const QuantizedPlan& plan, int64_t first);

// Sets what follows from rows, warps and splits of a streaming plan, and says whether that fits.
bool FitStream(const QuantizedParams& params, QuantizedPlan& plan);

QuantizedPlan PlanFor(const QuantizedParams& params, const cuda::Device& device);

// For groups of rows. Their sizes are on the device alone; a plan goes by their mean.
QuantizedPlan PlanForGroups(const QuantizedGroupsParams& params, const cuda::Device& device);

std::vector<cuda::KernelChoice> ReportQuantizedChoices(const cuda::Device& device);

}  // namespace intarsia::matmul
