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

// Formats of GGUF with minimums, or of 5 and 6 bits. Factors are in f16, or bytes times outer ones
// in f16, of whole stages.
bool HasGgufFactors(const QuantizedParams& p) {
  const auto is_outer = [&](const Factors& factors) {
    return factors.outer && factors.outers > 0 && factors.outer_dtype == DType::kF16 &&
           p.groups % factors.outers == 0 &&
           p.group * (p.groups / factors.outers) % kStageColumns == 0 && IsAligned16(factors.outer);
  };
  const auto are = [&](const Factors& factors, DType byte) {
    return factors.outer ? factors.dtype == byte && is_outer(factors)
                         : factors.dtype == DType::kF16;
  };
  if (p.format == Format::kU6B32)
    return p.group == kBlockColumns / 2 && p.scales.outer && are(p.scales, DType::kI8) &&
           !p.zeros.data;
  if (!HasCoarseGroups(p)) return false;
  if (p.format == Format::kU5B16)
    return !p.scales.outer && are(p.scales, DType::kF16) && !p.zeros.data;
  return (p.format == Format::kU4 || p.format == Format::kU5) && p.zeros.data && !p.points &&
         are(p.scales, DType::kU8) && are(p.zeros, DType::kU8) &&
         p.scales.outers == p.zeros.outers && !p.scales.outer == !p.zeros.outer;
}

// Of such weights.
bool HasMinimumsInF16(const QuantizedParams& p) { return p.zeros.data && !p.zeros.outer; }

// Whether kGroupsHopper takes them, as files have them: in whole stages, but for Q5_0.
bool HasGgufGroups(const QuantizedParams& p) {
  const int64_t group = p.format == Format::kU6B32 ? kBlockColumns / 2 : kBlockColumns;
  return HasGgufFactors(p) && p.group == group &&
         (!HasMinimumsInF16(p) || p.k % kStageColumns == 0);
}

// Rows of x that kWarpgroups takes of such weights: none; more than kMostRowsOfCodes, by wgmma; or
// any, up to kMostRowsByWarps of them by mma.sync. sm90/warpgroups.cuh has them as a table.
enum class RowsTaken { kNone, kMany, kAny };
RowsTaken RowsTakenOf(const QuantizedParams& p) {
  using enum RowsTaken;
  if (HasGgufFactors(p)) return kAny;
  if (IsNvFp4(p)) return p.dtype == DType::kBF16 ? kAny : kNone;
  const bool wide = p.group % kStageColumns == 0, has_zeros = p.zeros.data;
  if (p.scales.outer || p.zeros.outer || !HasCoarseGroups(p)) return kNone;
  if (p.format == Format::kE2M1) {
    const bool mx = p.group == kBlockColumns && p.scales.dtype == DType::kF8E8M0;
    return mx && !has_zeros && p.dtype == DType::kBF16 ? kAny : kNone;
  }
  if (Bytes(p.scales.dtype) == 1) return kNone;
  switch (p.format) {
    case Format::kU4:
      if (p.points) return wide && HasPlainGroups(p) ? kAny : kNone;
      return has_zeros && Bytes(p.zeros.dtype) > 1 ? kMany : kNone;
    case Format::kU4B8:
    case Format::kI8:
      return has_zeros ? kNone : kAny;
    case Format::kE4M3:
      return wide && !has_zeros ? kMany : kNone;
    default:
      return kNone;
  }
}

// CTAs of kWarpgroups that share a sum, of more than 16 rows of x, each alone on its
// multiprocessor. Clusters of 6 find room for all of their CTAs on three quarters of the
// multiprocessors, smaller ones on five sixths, pairs on all; on more, some waited for a second
// turn.
int64_t WarpgroupsSplits(int64_t ctas, int64_t sms) {
  if (sms * 3 / 4 >= 6 * ctas) return 6;
  return std::max(std::min<int64_t>(sms * 5 / 6 / ctas, 5), std::min<int64_t>(sms / ctas, 2));
}

// The same of up to 16 rows, several of which a multiprocessor has room for. Seven are faster than
// fewer; clusters of eight wait for a second turn. Of 8 bits each has kLeast8BitStages.
constexpr int64_t kMostFewRowsSplits = 7, kLeast8BitStages = 6;
int64_t FewRowsSplits(const QuantizedParams& p, int64_t ctas, int64_t sms) {
  const int64_t stages = p.k / kStageColumns;
  const int64_t most = BitsOf(p.format) == 8 ? stages / kLeast8BitStages : stages / 2;
  return std::min({sms * 17 / 10 / ctas, kMostFewRowsSplits, most});
}

// Stages of kWarpgroups for each multiprocessor, from which two warpgroups take them in turn: with
// int4, and with 8 bits, whose kernels have fewer CTAs.
constexpr int64_t kManyStages = 128, kMany8BitStages = 80;
bool HasManyStages(const QuantizedParams& p, const cuda::Device& device, int64_t least) {
  return p.tiles * (p.k / kStageColumns) >= least * device.sms;
}
int FewRowsParts(const QuantizedParams& p, int rows, const cuda::Device& device) {
  const int64_t least = BitsOf(p.format) == 8 ? kMany8BitStages : kManyStages;
  return HasManyStages(p, device, least) ? 2 : LeastParts(rows, p.format, p.points);
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
  const RowsTaken taken = RowsTakenOf(p);
  const bool is_few = taken == RowsTaken::kAny && p.m <= kMostRowsByWarps;
  if (taken == RowsTaken::kNone || (taken == RowsTaken::kMany && p.m <= kMostRowsOfCodes) ||
      !plan.aligned || p.dtype == DType::kF32 || p.k == 0 || p.k % kStageColumns != 0 ||
      !HasHopper(device))
    return false;
  for (const void* at : {const_cast<const void*>(p.out), p.bias, p.residual})
    if (!IsAligned16(at)) return false;
  const int64_t stages = p.k / kStageColumns, sms = device.sms;
  // Points cost the resident kernel a fifth more time, this one a twentieth.
  if (p.format == Format::kU4B8 && p.group % kStageColumns == 0 && p.m < kLeastWarpgroupsRows &&
      HasManyStages(p, device, kManyStages) && !HasManyTiles(p, device))
    return false;
  const auto cut = [&](int tiles) {
    QuantizedPlan found = plan;
    found.kernel = QuantizedKernelKind::kWarpgroups;
    found.shape = {is_few ? (p.m <= 8 ? 8 : 16) : p.m <= 32 ? 32 : 64, tiles};
    found.k_warps = is_few ? FewRowsParts(p, found.shape.rows, device) : 1;
    const int64_t ctas = Ctas(p, found);
    const int64_t splits =
        is_few ? FewRowsSplits(p, ctas, sms) : std::min(WarpgroupsSplits(ctas, sms), stages / 2);
    found.splits = static_cast<int>(std::max<int64_t>(splits, 1));
    return found;
  };
  // Tiles and stages one after the other, with what each stage costs beside them.
  const auto time = [&](const QuantizedPlan& found) {
    return CeilDiv(Ctas(p, found) * found.splits, sms) * CeilDiv<int64_t>(stages, found.splits) *
           (found.shape.tiles + 1);
  };
  QuantizedPlan found = cut(is_few ? kFewRowsTiles : kWideTiles);
  // With kWideTiles minimums and their scales are f16, or bytes times outer factors.
  const bool is_narrow = taken == RowsTaken::kMany && p.format == Format::kU4;
  if (const QuantizedPlan narrow = cut(kNarrowTiles);
      !is_few && (is_narrow || time(narrow) < time(found)))
    found = narrow;
  // Other kernels have more CTAs for a small matrix. But 5 and 6 bits have that for any codes
  // alone, and the others read outer factors from memory: both take 3 to 10 times as long for large
  // ones.
  const bool is_any = plan.kernel == QuantizedKernelKind::kAny || p.scales.outer;
  const int64_t least = taken == RowsTaken::kAny || p.m > kMostRowsByWarps ? sms / 2 : sms * 3 / 4;
  if (!is_any && Ctas(p, found) * found.splits < least) return false;
  plan = found;
  return true;
}

bool PlanGroupsHopper(const QuantizedGroupsParams& params, int64_t here, int64_t mean,
                      const cuda::Device& device, QuantizedPlan& plan) {
  const QuantizedParams& p = params.each;
  const bool mx = p.format == Format::kE2M1 && p.group == kBlockColumns &&
                  p.scales.dtype == DType::kF8E8M0 && !p.scales.outer && !p.zeros.data;
  const bool wide = p.group % kStageColumns == 0, bytes = BitsOf(p.format) == 8, nv = IsNvFp4(p);
  const bool may_be_narrow = !p.zeros.data && p.format != Format::kE4M3;
  const bool plain =
      (bytes ? !p.zeros.data && !p.scales.outer && Bytes(p.scales.dtype) > 1 : HasPlainGroups(p)) &&
      (may_be_narrow ? HasCoarseGroups(p) : wide);
  const bool have_room =
      plan.stage_groups * plan.scale_bytes <= MostStageScaleBytes(p.format, GroupEndsOf(p.group));
  const bool gguf = HasGgufGroups(p) && plan.aligned && p.dtype != DType::kF32 && p.k > 0;
  if (!(gguf || (HasFastKernels(p, plan) && (mx || nv || plain) && have_room)) || here == 0 ||
      p.k % kBlockColumns != 0 || !HasHopper(device))
    return false;
  if (mean >= kLeastWarpgroupsMean && TakesWarpgroups(params)) {
    plan.kernel = QuantizedKernelKind::kGroupsWarpgroups;
    plan.shape = mean <= kMostFewRowsMean ? kFewWarpgroupsRows : kManyWarpgroupsRows;
    return true;
  }
  plan.kernel = QuantizedKernelKind::kGroupsHopper;
  // Measured: with more than 6, too many groups need a second unit of 8 rows.
  plan.shape = GroupsHopperShape(mean <= 6    ? 8
                                 : mean <= 16 ? 16
                                              : 32,
                                 p.format, gguf && HasMinimumsInF16(p));
  plan.tile_warps = kGroupsHopperWarps;
  if (BitsOf(p.format) == 4 && mean <= 4 &&
      here * CeilDiv(p.tiles, plan.cta_tiles()) <= 2 * int64_t{device.sms})
    plan.shape = kFewUnits;
  return true;
}

}  // namespace intarsia::matmul
