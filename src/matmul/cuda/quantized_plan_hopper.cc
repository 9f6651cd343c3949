#include "src/matmul/cuda/quantized_plan_hopper.h"

#include <algorithm>

#include "src/core/aligned.h"
#include "src/matmul/cuda/row_of_codes.h"
#include "src/matmul/cuda/sm90/grouped.h"

namespace intarsia::matmul {
namespace {

// Of x, below which another kernel than kWarpgroups may be faster for int4
// (docs/notebook/weights_in_codes.md).
constexpr int64_t kLeastWarpgroupsRows = 4;

// Tiles that keep each multiprocessor busy without a cut of the sum.
bool HasManyTiles(const QuantizedParams& p, const cuda::Device& device) {
  return p.tiles >= int64_t{8} * device.sms;
}

bool HasHopper(const cuda::Device& device) {
  return cuda::HasImage(cuda::kHopper, device) &&
         device.shared_bytes_per_block >= kMostResidentBytes;
}

// Groups of a piece of 128 columns.
int PieceGroups(const QuantizedPlan& plan) {
  return plan.kernel == QuantizedKernelKind::kWideResident ? 1 : kStageColumns / int{kBlockColumns};
}

int ResidentBytes(const QuantizedParams& p, const QuantizedPlan& plan) {
  const int rows = static_cast<int>(std::min<int64_t>(p.m, plan.shape.rows));
  const int groups = PieceGroups(plan);
  const int64_t tiles = CeilDiv<int64_t>(p.tiles, plan.strips);
  const int64_t ring = int64_t{plan.tile_warps * plan.k_warps} *
                       ResidentDepth(p.format, plan.shape.rows) * plan.slot_bytes;
  const int64_t x = int64_t{rows} * (plan.slice_pieces * 2 * kStageColumns + kResidentPad);
  const int64_t sums =
      StreamsZeros(p.format) ? int64_t{plan.slice_pieces} * groups * plan.shape.rows * 4 : 0;
  const int64_t parts =
      int64_t{2} * plan.tile_warps * plan.k_warps * plan.shape.rows * kResidentPitch * 4;
  const int64_t results = plan.splits > 1 ? tiles * rows * kTileRows * 4 : 0;
  return static_cast<int>(std::min<int64_t>(ring + x + sums + parts + results, 1 << 30));
}

// Sets what follows from warps and splits, and says whether that fits.
bool FitResident(const QuantizedParams& p, const cuda::Device& device, QuantizedPlan& plan) {
  const int64_t pieces = CeilDiv<int64_t>(p.k, kStageColumns);
  while (plan.splits > 1 && plan.splits * plan.k_warps > pieces) plan.splits /= 2;
  while (plan.k_warps > pieces) plan.k_warps /= 2;
  plan.slice_pieces = static_cast<int>(CeilDiv<int64_t>(pieces, plan.splits));
  plan.slot_bytes = static_cast<int>(kStageColumns * kTileRows * BitsOf(p.format) / 8) +
                    PieceGroups(plan) * (plan.scale_bytes + plan.zero_bytes);
  // A CTA for each multiprocessor, and as many tiles for each, or one less.
  const int64_t most = std::max(device.sms / plan.splits, 1);
  plan.strips = static_cast<int>(CeilDiv(p.tiles, CeilDiv(p.tiles, most)));
  plan.shared_bytes = ResidentBytes(p, plan);
  return plan.shared_bytes <= kMostResidentBytes;
}

// 4 bits of files with one factor a group: less 8, as GPTQ's, or less a point, as AWQ's.
bool HasPlainGroups(const QuantizedParams& p) {
  const bool points = p.format == Format::kU4 && p.zeros.data && p.points &&
                      p.zeros.dtype == DType::kU8 && !p.zeros.outer;
  return (points || (p.format == Format::kU4B8 && !p.zeros.data)) && !p.scales.outer &&
         Bytes(p.scales.dtype) > 1;
}

// 4 bits of files with minimums, as GGUF's Q4_1.
bool HasMinimums(const QuantizedParams& p) {
  return p.format == Format::kU4 && p.zeros.data && !p.points && !p.zeros.outer &&
         Bytes(p.zeros.dtype) > 1;
}

// Others that kWarpgroups takes: groups of 32 or 64 columns, minimums, codes of 8 bits, mxfp4 for x
// in bf16.
bool HasOtherGroups(const QuantizedParams& p) {
  if (p.scales.outer || !HasCoarseGroups(p)) return false;
  if (p.format == Format::kU4) return HasMinimums(p) && Bytes(p.scales.dtype) > 1;
  if (p.zeros.data) return false;
  if (p.format == Format::kE2M1)
    return p.dtype == DType::kBF16 && p.group == kBlockColumns && p.scales.dtype == DType::kF8E8M0;
  return Bytes(p.scales.dtype) > 1 && (p.format == Format::kI8 || p.format == Format::kU4B8 ||
                                       (p.format == Format::kE4M3 && p.group % kStageColumns == 0));
}

// CTAs of kWarpgroups that share a sum, of more than 16 rows of x, each alone on its
// multiprocessor. Clusters of 6 find room for all of their CTAs on three quarters of the
// multiprocessors, smaller ones on five sixths, pairs on all; on more, some waited for a second
// turn.
int64_t WarpgroupsSplits(int64_t ctas, int64_t sms) {
  if (sms * 3 / 4 >= 6 * ctas) return 6;
  return std::max(std::min<int64_t>(sms * 5 / 6 / ctas, 5), std::min<int64_t>(sms / ctas, 2));
}

// Rows of a group, in the mean, from which kGroupsWarpgroups is the faster one, and up to which its
// tiles have few rows.
constexpr int kLeastWarpgroupsMean = 12, kMostFewRowsMean = 20;

// Whether kGroupsWarpgroups takes a call that kGroupsHopper takes: scales of mxfp4 multiply codes
// in x's type, others a stage's sums.
bool TakesWarpgroups(const QuantizedGroupsParams& params) {
  const QuantizedParams& p = params.each;
  return (p.format == Format::kE2M1 ? p.dtype == DType::kBF16 : p.group % kStageColumns == 0) &&
         IsAligned16(p.out) && sm90::CanFindRows(params.groups, p.rows, params.x_rows, p.k);
}

}  // namespace

bool IsRowFaster(const QuantizedParams& p, const cuda::Device& device) {
  return p.format == Format::kE2M1 || HasManyTiles(p, device);
}

bool PlanResident(const QuantizedParams& p, const cuda::Device& device, QuantizedPlan& plan) {
  if (plan.kernel == QuantizedKernelKind::kAny || p.m > kMostResidentRows || !HasHopper(device))
    return false;
  // Where another kernel was as fast, or faster.
  if (p.format == Format::kU4 && p.m > 2 && p.m <= 8) return false;
  if (p.format == Format::kE4M3 && p.m > 8) return false;
  QuantizedPlan resident = plan;
  resident.kernel = p.group % kStageColumns == 0 && p.format != Format::kE2M1
                        ? QuantizedKernelKind::kWideResident
                        : QuantizedKernelKind::kResident;
  resident.shape = {p.m <= 8 ? 8 : 16, 1};
  const bool four_bits = BitsOf(p.format) == 4, many_tiles = HasManyTiles(p, device);
  const int64_t tiles = CeilDiv<int64_t>(p.tiles, device.sms);  // of a CTA
  const auto share = [&](int tile_warps, int k_warps, int splits) {
    resident.tile_warps = tile_warps, resident.k_warps = k_warps, resident.splits = splits;
  };
  if (p.m <= 8) {
    const bool plain =
        resident.kernel == QuantizedKernelKind::kWideResident && p.format == Format::kU4B8;
    if (plain && many_tiles)
      share(16, 1, 2);
    else if (p.m > 2)
      share(2, 8, 2);
    else if (tiles == 3)
      share(3, 5, 1);
    else
      share(2, 8, 1);
  } else if (many_tiles) {
    four_bits ? share(14, 1, 2) : share(2, 4, 1);
  } else {
    share(2, four_bits ? 8 : 4, 2);
  }
  if (!FitResident(p, device, resident)) {
    if (p.m > 2 || resident.splits > 1) return false;
    resident.splits = 2;
    if (!FitResident(p, device, resident)) return false;
  }
  plan = resident;
  return true;
}

bool PlanWarpgroups(const QuantizedParams& p, const cuda::Device& device, QuantizedPlan& plan) {
  const bool plain = HasPlainGroups(p) && p.group % kStageColumns == 0;
  const bool other = !plain && HasOtherGroups(p);
  // Whether mma.sync multiplies few rows; by wgmma up to 8 are not faster than by other kernels.
  const bool by_warps =
      plain || (other && (p.format == Format::kE2M1 || p.format == Format::kU4B8));
  const bool takes = by_warps || (other && p.m > kMostRowsOfCodes);
  if (plan.kernel == QuantizedKernelKind::kAny || p.k % kStageColumns != 0 || !takes ||
      !HasHopper(device))
    return false;
  for (const void* at : {const_cast<const void*>(p.out), p.bias, p.residual})
    if (!IsAligned16(at)) return false;
  const int64_t stages = p.k / kStageColumns, sms = device.sms;
  // Whether a CTA has so many stages that two warpgroups take them in turn.
  const bool is_long = p.tiles * stages >= 128 * sms, is_few = by_warps && p.m <= kMostRowsByWarps;
  // Points cost the resident kernel a fifth more time, this one a twentieth.
  if (plain && p.m < kLeastWarpgroupsRows && !p.zeros.data && is_long && !HasManyTiles(p, device))
    return false;
  const auto cut = [&](int tiles) {
    QuantizedPlan found = plan;
    found.kernel = QuantizedKernelKind::kWarpgroups;
    found.shape = {is_few ? (p.m <= 8 ? 8 : 16) : p.m <= 32 ? 32 : 64, tiles};
    found.k_warps = is_few && is_long ? 2 : 1;
    const int64_t ctas = Ctas(p, found);
    const int64_t room = is_few ? std::min<int64_t>(sms * 17 / 10 / ctas, is_long ? 6 : 5)
                                : WarpgroupsSplits(ctas, sms);
    found.splits = static_cast<int>(std::max<int64_t>(std::min(room, stages / 2), 1));
    return found;
  };
  // Tiles and stages one after the other, with what each stage costs beside them.
  const auto time = [&](const QuantizedPlan& found) {
    return CeilDiv(Ctas(p, found) * found.splits, sms) * CeilDiv<int64_t>(stages, found.splits) *
           (found.shape.tiles + 1);
  };
  QuantizedPlan found = cut(is_few ? kFewRowsTiles : kWideTiles);
  if (const QuantizedPlan narrow = cut(kNarrowTiles);
      !is_few && (HasMinimums(p) || time(narrow) < time(found)))
    found = narrow;
  // Other kernels have more CTAs for a small matrix.
  const int64_t least = by_warps || p.m > kMostRowsByWarps ? sms / 2 : sms * 3 / 4;
  if (Ctas(p, found) * found.splits < least) return false;
  plan = found;
  return true;
}

bool PlanGroupsHopper(const QuantizedGroupsParams& params, int64_t here, int64_t mean,
                      const cuda::Device& device, QuantizedPlan& plan) {
  const QuantizedParams& p = params.each;
  const bool mx = p.format == Format::kE2M1 && p.group == kBlockColumns &&
                  p.scales.dtype == DType::kF8E8M0 && !p.zeros.data;
  const bool integers =
      HasPlainGroups(p) && (p.zeros.data ? p.group % kStageColumns == 0 : HasCoarseGroups(p));
  if (plan.kernel == QuantizedKernelKind::kAny || !(mx || integers) || here == 0 ||
      p.k % kBlockColumns != 0 ||
      plan.stage_groups * plan.scale_bytes >
          MostStageScaleBytes(p.format, p.group % kStageColumns == 0) ||
      !HasHopper(device))
    return false;
  if (mean >= kLeastWarpgroupsMean && TakesWarpgroups(params)) {
    plan.kernel = QuantizedKernelKind::kGroupsWarpgroups;
    plan.shape = mean <= kMostFewRowsMean ? kFewWarpgroupsRows : kManyWarpgroupsRows;
    return true;
  }
  plan.kernel = QuantizedKernelKind::kGroupsHopper;
  // Measured: with more than 6, too many groups need a second unit of 8 rows.
  plan.shape = mean <= 6 ? kRows8 : mean <= 16 ? kRows16 : kRows32;
  plan.tile_warps = kGroupsHopperWarps;
  if (mean <= 4 && here * CeilDiv(p.tiles, plan.cta_tiles()) <= 2 * int64_t{device.sms})
    plan.shape = kFewUnits;
  return true;
}

}  // namespace intarsia::matmul
