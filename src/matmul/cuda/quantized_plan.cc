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

// Whether a kernel that streams codes past rows of x takes the call, and which.
QuantizedKernelKind StreamFor(const QuantizedParams& p, const QuantizedPlan& plan) {
  const bool format = BitsOf(p.format) == 4 || BitsOf(p.format) == 8;
  if (!format || p.dtype == DType::kF32 || !plan.aligned || p.scales.outer || p.zeros.outer ||
      p.k == 0 || p.group % kBlockColumns != 0)
    return QuantizedKernelKind::kAny;
  if (p.format != Format::kE2M1 && p.group % StreamStageColumns(p.format, true) == 0)
    return QuantizedKernelKind::kWideStream;
  const int most = 2 * static_cast<int>(kTileRows);  // registers hold factors of many groups
  return plan.scale_bytes <= most && plan.zero_bytes <= most ? QuantizedKernelKind::kStream
                                                             : QuantizedKernelKind::kAny;
}

// Partial sums of each warp, with one more column for the banks.
int SumBytes(const QuantizedPlan& plan) {
  return plan.k_warps * plan.shape.rows * 4 * (static_cast<int>(plan.cta_tiles() * kTileRows) + 1);
}

// Sets what follows from the warps, and says whether that fits.
bool Fit(const QuantizedParams& p, int rows, QuantizedPlan& plan) {
  const auto codes = static_cast<int>(kStageColumns * kTileRows * BitsOf(p.format) / 8);
  const int of_tile = codes + plan.stage_groups * (plan.scale_bytes + plan.zero_bytes);
  plan.stage_bytes =
      rows * kStageColumns * Bytes(p.dtype) + of_tile * static_cast<int>(plan.cta_tiles());
  const int ring = plan.stage_bytes * plan.shape.stages() * plan.k_warps;
  // Then partial sums are in the ring's place.
  plan.shared_bytes = std::max(ring, SumBytes(plan));
  return plan.shared_bytes <= kMostSharedBytes;
}

int64_t RowTiles(const QuantizedParams& p, const QuantizedPlan& plan) {
  return CeilDiv<int64_t>(p.m, plan.shape.rows);
}
int64_t Ctas(const QuantizedParams& p, const QuantizedPlan& plan) {
  return RowTiles(p, plan) * CeilDiv(p.tiles, plan.cta_tiles());
}

// Doubles the splits while there are fewer CTAs than `wanted`, as long as each warp has two stages.
// CTAs share sums as a cluster does, which sm_90 is the first to have.
void Split(const QuantizedParams& p, int64_t stages, int64_t wanted, const cuda::Device& device,
           QuantizedPlan& plan) {
  while (device.arch >= cuda::kHopper && plan.splits < kMostSplits &&
         Ctas(p, plan) * plan.splits < wanted && stages >= int64_t{4} * plan.splits * plan.k_warps)
    plan.splits *= 2;
}

void PlanStream(const QuantizedParams& p, const cuda::Device& device, QuantizedPlan& plan) {
  plan.shape = {p.m <= 8 ? 8 : 16, 2};
  const bool wide = plan.kernel == QuantizedKernelKind::kWideStream;
  const int64_t stages = CeilDiv<int64_t>(p.k, StreamStageColumns(p.format, wide));
  // Rows of x are read once for all tiles of a CTA, which pays for many of them alone. CTAs for
  // each multiprocessor: docs/facts.md.
  plan.tile_warps = p.m <= 16 ? 1 : 2;
  plan.k_warps = kStreamCodesWarps / plan.tile_warps;
  while (plan.k_warps > 1 && plan.k_warps / 2 >= stages) plan.k_warps /= 2;
  const int64_t wanted = p.m <= 8    ? device.sms * int64_t{3} / 2
                         : p.m <= 16 ? device.sms * int64_t{7} / 5
                                     : int64_t{2} * device.sms;
  Split(p, stages, wanted, device, plan);
  plan.shared_bytes = SumBytes(plan);
}

void PlanAny(const QuantizedParams& p, const cuda::Device& device, QuantizedPlan& plan) {
  plan.fine = !FitsCoarse(p);
  plan.stage_groups = StageGroups(p.group);
  plan.shape = p.m <= 8                  ? QuantizedShape{8, 1}
               : p.m <= 16 && !plan.fine ? QuantizedShape{16, 2}
                                         : QuantizedShape{32, 2};
  const int rows = static_cast<int>(std::min<int64_t>(p.m, plan.shape.rows));
  const int64_t stages = CeilDiv<int64_t>(p.k, kStageColumns);
  // Rows of x are read once for all tiles of a CTA. Where CTAs of a cluster can share a sum, more
  // tiles do not mean fewer CTAs.
  if (p.m > 8) {
    const bool clusters = device.arch >= cuda::kHopper;
    plan.tile_warps = 4;
    while (plan.tile_warps > 1 && !clusters && Ctas(p, plan) < device.sms) plan.tile_warps /= 2;
  }
  plan.k_warps = kMostWarps / plan.tile_warps;
  while (plan.k_warps > 1 && plan.k_warps / 2 >= stages) plan.k_warps /= 2;
  while (!Fit(p, rows, plan)) {
    if (plan.k_warps > 1)
      plan.k_warps /= 2;
    else
      plan.tile_warps /= 2;
  }
  Split(p, stages, int64_t{2} * device.sms, device, plan);
}

}  // namespace

QuantizedPlan PlanFor(const QuantizedParams& p, const cuda::Device& device) {
  QuantizedPlan plan;
  plan.scale_bytes = FactorBytes(p.scales);
  plan.zero_bytes = FactorBytes(p.zeros);
  plan.aligned = p.k * Bytes(p.dtype) % 16 == 0 && Aligned16(p.x) && Aligned16(p.packed) &&
                 Aligned16(p.scales.data) && Aligned16(p.zeros.data);
  plan.kernel = StreamFor(p, plan);
  if (plan.kernel != QuantizedKernelKind::kAny)
    PlanStream(p, device, plan);
  else
    PlanAny(p, device, plan);
  return plan;
}

}  // namespace intarsia::matmul
