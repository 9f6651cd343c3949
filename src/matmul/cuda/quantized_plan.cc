#include "src/matmul/cuda/quantized_plan.h"

#include <algorithm>

namespace intarsia::matmul {
namespace {

bool Aligned16(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// A kernel for groups of 32 columns and more is built for formats that files of 4 bits have.
bool FitsCoarse(const QuantizedParams& p) {
  const bool format =
      p.format == Format::kU4 || p.format == Format::kU4B8 || p.format == Format::kE2M1;
  return format && p.dtype != DType::kF32 &&
         (p.group == 32 || p.group == 64 || p.group % kStageColumns == 0);
}

// The most groups that kStageColumns columns, from a multiple of as many on, can meet.
int StageGroups(int64_t group) {
  if (group % kStageColumns == 0) return 1;
  const int64_t whole = kStageColumns / group;
  return static_cast<int>(kStageColumns % group == 0 ? whole : whole + 2);
}

int FactorBytes(const Factors& factors) {
  return factors.data ? static_cast<int>(kTileRows) * Bytes(factors.dtype) : 0;
}

// Sets what follows from the warps, and says whether that fits.
bool Fit(const QuantizedParams& p, int rows, QuantizedPlan& plan) {
  const auto codes = static_cast<int>(kStageColumns * kTileRows * BitsOf(p.format) / 8);
  const int of_tile = codes + plan.stage_groups * (plan.scale_bytes + plan.zero_bytes);
  plan.stage_bytes =
      rows * kStageColumns * Bytes(p.dtype) + of_tile * static_cast<int>(plan.cta_tiles());
  const int ring = plan.stage_bytes * plan.shape.stages() * plan.k_warps;
  // Then partial sums, with one more column for the banks, are in the ring's place.
  const int sums =
      plan.k_warps * plan.shape.rows * 4 * (static_cast<int>(plan.cta_tiles() * kTileRows) + 1);
  plan.shared_bytes = std::max(ring, sums);
  return plan.shared_bytes <= kMostSharedBytes;
}

}  // namespace

QuantizedPlan PlanFor(const QuantizedParams& p, const cuda::Device& device) {
  QuantizedPlan plan;
  plan.fine = !FitsCoarse(p);
  plan.shape = p.m <= 8                  ? QuantizedShape{8, 1}
               : p.m <= 16 && !plan.fine ? QuantizedShape{16, 2}
                                         : QuantizedShape{32, 2};
  plan.stage_groups = StageGroups(p.group);
  plan.scale_bytes = FactorBytes(p.scales);
  plan.zero_bytes = FactorBytes(p.zeros);
  plan.aligned = p.k * Bytes(p.dtype) % 16 == 0 && Aligned16(p.x) && Aligned16(p.packed) &&
                 Aligned16(p.scales.data) && Aligned16(p.zeros.data);
  const int rows = static_cast<int>(std::min<int64_t>(p.m, plan.shape.rows));
  const int64_t stages = CeilDiv<int64_t>(p.k, kStageColumns);
  const int64_t row_tiles = CeilDiv<int64_t>(p.m, plan.shape.rows);
  const bool clusters = device.arch >= cuda::kHopper;
  const auto ctas = [&] { return row_tiles * CeilDiv(p.tiles, plan.cta_tiles()); };
  // Rows of x are read once for all tiles of a CTA. Where CTAs of a cluster can share a sum, more
  // tiles do not mean fewer CTAs.
  if (p.m > 8) {
    plan.tile_warps = 4;
    while (plan.tile_warps > 1 && !clusters && ctas() < device.sms) plan.tile_warps /= 2;
  }
  plan.k_warps = kMostWarps / plan.tile_warps;
  while (plan.k_warps > 1 && plan.k_warps / 2 >= stages) plan.k_warps /= 2;
  while (!Fit(p, rows, plan)) {
    if (plan.k_warps > 1)
      plan.k_warps /= 2;
    else
      plan.tile_warps /= 2;
  }
  // Two CTAs a multiprocessor, as long as each warp has two stages at least.
  while (clusters && plan.splits < 8 && ctas() * plan.splits < int64_t{2} * device.sms &&
         stages >= int64_t{4} * plan.splits * plan.k_warps)
    plan.splits *= 2;
  return plan;
}

}  // namespace intarsia::matmul
