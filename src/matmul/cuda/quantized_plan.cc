#include "src/matmul/cuda/quantized_plan.h"

#include <algorithm>
#include <limits>

#include "src/core/aligned.h"
#include "src/matmul/cuda/quantized_plan_hopper.h"
#include "src/matmul/cuda/row_of_codes.h"

namespace intarsia::matmul {
namespace {

// A kernel for groups of 32 columns and more is built for formats that files of 4 bits have.
bool FitsCoarse(const QuantizedParams& p) {
  const bool format =
      p.format == Format::kU4 || p.format == Format::kU4B8 || p.format == Format::kE2M1;
  return format && p.dtype != DType::kF32 && HasCoarseGroups(p);
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
  if (!format || p.dtype == DType::kF32 || !plan.aligned || p.k == 0 ||
      p.group % kBlockColumns != 0 || (p.zeros.data && !StreamsZeros(p.format)))
    return QuantizedKernelKind::kAny;
  return p.format != Format::kE2M1 && p.group % StreamStageColumns(p.format) == 0
             ? QuantizedKernelKind::kWideStream
             : QuantizedKernelKind::kStream;
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

// Doubles the splits while there are fewer CTAs than `wanted`, as long as each warp has two stages.
// CTAs share sums as a cluster does, which sm_90 is the first to have.
void Split(const QuantizedParams& p, int64_t stages, int64_t wanted, const cuda::Device& device,
           QuantizedPlan& plan) {
  while (device.arch >= cuda::kHopper && plan.splits < kMostSplits &&
         Ctas(p, plan) * plan.splits < wanted && stages >= int64_t{4} * plan.splits * plan.k_warps)
    plan.splits *= 2;
}

// Halves the warps until `fits`.
template <class Fits>
void Shrink(QuantizedPlan& plan, Fits fits) {
  while (!fits()) (plan.k_warps > 1 ? plan.k_warps : plan.tile_warps) /= 2;
}

// How many CTAs share a sum, and how many tiles of columns each has, as measured for layers of a
// Llama of 8 billion parameters (docs/notebook/weights_in_codes.md).
void ShareStream(const QuantizedParams& p, const cuda::Device& device, QuantizedPlan& plan) {
  const bool clusters = device.arch >= cuda::kHopper;
  const int64_t steps = CeilDiv<int64_t>(p.k, kStageColumns);
  const auto share = [&](int tile_warps, int k_warps) {
    plan.tile_warps = tile_warps, plan.k_warps = k_warps;
  };
  const auto split = [&](auto more) {
    while (clusters && plan.splits < kMostSplits &&
           steps >= int64_t{2} * plan.splits * plan.k_warps && more())
      plan.splits *= 2;
  };
  // Few columns: eight CTAs for each 256 of them do not fill the GPU.
  const bool few_columns = CeilDiv<int64_t>(p.tiles, 16) * kMostSplits <= device.sms;
  if (p.m <= 2) {
    share(1, CeilDiv<int64_t>(p.tiles, 2) < device.sms ? 8 : 4);
    split([&] {
      return Ctas(p, plan) * plan.splits < device.sms &&
             steps >= int64_t{14} * plan.splits * plan.k_warps;
    });
  } else if (p.m <= 8) {
    share(2, 2);
    split([&] { return plan.splits == 1 || steps >= int64_t{14} * plan.splits * plan.k_warps; });
  } else if (p.m <= 16 && few_columns) {
    share(2, 4);
    split([&] { return plan.splits == 1; });
  } else if (p.m <= 16) {
    // Zeros and groups of a block take registers, which have room for more CTAs if these are
    // smaller.
    share(plan.kernel == QuantizedKernelKind::kStream || StreamsZeros(p.format) ? 4 : 8, 1);
    split([&] { return 2 * Ctas(p, plan) * plan.splits < 3 * device.sms; });
  } else {
    share(few_columns ? 4 : 8, 1);
    split([&] { return few_columns || 2 * Ctas(p, plan) * plan.splits <= device.sms; });
  }
  while (plan.k_warps > 1 && plan.k_warps / 2 >= steps) plan.k_warps /= 2;
}

void PlanStream(const QuantizedParams& p, const cuda::Device& device, QuantizedPlan& plan) {
  plan.shape = {p.m <= 8 ? 8 : p.m <= 16 ? 16 : StreamMostRows(p.format, plan.kernel), 2};
  ShareStream(p, device, plan);
  Shrink(plan, [&] { return FitStream(p, plan); });
}

// How long kRow takes, as a multiple of what a multiprocessor takes for a unit of a warp: for
// all of its units, a wait for each of a warp's, and for each round of CTAs. The waits are guesses
// from measurements (docs/notebook/weights_in_codes.md).
int64_t RowTime(int tiles, int units, int sms, int tile_warps, int k_warps) {
  constexpr int kUnitWait = 8, kRoundWait = 50;
  const int warps = tile_warps * k_warps, ctas = CeilDiv(tiles, tile_warps * sms);
  const int rounds = CeilDiv(ctas, kRowWarpsAtOnce / warps);
  return CeilDiv(units, k_warps) * (int64_t{ctas} * warps + int64_t{kUnitWait} * rounds) +
         int64_t{kRoundWait} * rounds;
}

bool PlanRow(const QuantizedParams& p, const cuda::Device& device, QuantizedPlan& plan) {
  if (p.m > kMostRowsOfCodes || !HasFastKernels(p, plan) || !RowOfCodesShape::CanTake(p) ||
      !IsAligned16(p.norm.weight))
    return false;
  const RowOfCodesShape shape = RowOfCodesShape::Of(p, 0, static_cast<int>(p.m));
  if (shape.bytes > MostRowBytes(p.m)) return false;
  plan.kernel = QuantizedKernelKind::kRow;
  plan.shape = {p.m == 1 ? 1 : kMostRowsOfCodes, 1};
  plan.shared_bytes = shape.bytes;
  const int step = p.gating.is_there ? 2 : 1;  // a CTA has gates and their ups
  const int most_parts = std::min(shape.units, kMostRowParts);
  const int all = static_cast<int>(std::min<int64_t>(p.tiles, 1 << 27));  // FitCounts refuses more
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int parts = 1; parts <= most_parts; parts *= 2) {
    for (int tiles = step; tiles * parts <= kMostRowWarps; tiles += step) {
      if (tiles * parts < kLeastRowWarps) continue;
      const int64_t time = RowTime(all, shape.units, device.sms, tiles, parts);
      if (time < least) least = time, plan.tile_warps = tiles, plan.k_warps = parts;
    }
  }
  return true;
}

void PlanAny(const QuantizedParams& p, const cuda::Device& device, QuantizedPlan& plan) {
  plan.fine = !FitsCoarse(p);
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
  Shrink(plan, [&] { return Fit(p, rows, plan); });
  Split(p, stages, int64_t{2} * device.sms, device, plan);
}

// Factors, alignment and the kernel that takes the call.
QuantizedPlan BeginPlan(const QuantizedParams& p) {
  QuantizedPlan plan;
  plan.stage_groups = StageGroups(p.group);
  plan.scale_bytes = FactorBytes(p.scales);
  plan.zero_bytes = FactorBytes(p.zeros);
  plan.aligned = p.k * Bytes(p.dtype) % 16 == 0 && IsAligned16(p.x) && IsAligned16(p.packed) &&
                 IsAligned16(p.scales.data) && IsAligned16(p.zeros.data);
  plan.kernel = StreamFor(p, plan);
  return plan;
}

}  // namespace

bool FitStream(const QuantizedParams& p, QuantizedPlan& plan) {
  const int columns = StreamStageColumns(p.format);
  const int rows = static_cast<int>(std::min<int64_t>(p.m, plan.shape.rows));
  plan.row_shift = 0;
  while (1 << plan.row_shift < rows) ++plan.row_shift;
  const int groups =
      plan.kernel == QuantizedKernelKind::kWideStream ? 1 : columns / int{kBlockColumns};
  const int cta_columns = static_cast<int>(plan.cta_tiles() * kTileRows);
  const int factors = (StreamsZeros(p.format) ? 2 : 1) * cta_columns;
  const int of_stage = rows * columns * Bytes(p.dtype) + groups * 4 * factors;
  const int of_rows = rows * 64;  // what keeps rows in different banks
  // Warps take stages in turn, and each as many as its registers hold.
  const int quantum = StreamStages(plan.shape.rows) * plan.k_warps;
  const int64_t stages = CeilDiv(CeilDiv<int64_t>(p.k, columns), int64_t{plan.splits});
  const int room = plan.shape.rows <= 16 ? kMostSharedBytes / 2 : kMostSharedBytes;
  const int whole = static_cast<int>(std::min<int64_t>(RoundUp<int64_t>(stages, quantum), 1 << 16));
  int chunks = 1;
  plan.chunk_stages = whole;
  if (of_rows + int64_t{whole} * of_stage > room) {
    chunks = 2;
    plan.chunk_stages = std::max((room / 2 - of_rows) / of_stage / quantum, 1) * quantum;
  }
  plan.chunk_bytes = of_rows + plan.chunk_stages * of_stage;
  plan.shared_bytes = std::max(chunks * plan.chunk_bytes, SumBytes(plan));
  return plan.shared_bytes <= kMostSharedBytes;
}

QuantizedParams PassFrom(const QuantizedParams& params, const QuantizedPlan& plan, int64_t first) {
  const auto from = [&](const void* data, int64_t columns, DType dtype) {
    return static_cast<const char*>(data) + first * columns * Bytes(dtype);
  };
  QuantizedParams p = params;
  p.m = std::min(params.m - first, MostRowsOfPass(plan));
  p.x = from(params.x, params.k, params.dtype);
  p.out = const_cast<char*>(from(params.out, params.results(), params.out_dtype));
  if (params.residual) p.residual = from(params.residual, params.n(), params.dtype);
  return p;
}

QuantizedPlan PlanFor(const QuantizedParams& p, const cuda::Device& device) {
  QuantizedPlan plan = BeginPlan(p);
  // kRow is the fastest for one row, and it alone norms it. With 2 to 8 rows kWarpgroups comes
  // first, where it takes them, and kResident where IsRowFaster does not say otherwise.
  if (p.m == 1 && PlanRow(p, device, plan)) return plan;
  if (PlanWarpgroups(p, device, plan)) return plan;
  if (IsRowFaster(p, device) && PlanRow(p, device, plan)) return plan;
  if (PlanResident(p, device, plan) || PlanRow(p, device, plan)) return plan;
  if (plan.kernel != QuantizedKernelKind::kAny)
    PlanStream(p, device, plan);
  else
    PlanAny(p, device, plan);
  return plan;
}

QuantizedPlan PlanForGroups(const QuantizedGroupsParams& params, const cuda::Device& device) {
  QuantizedParams p = params.each;
  p.m = params.groups.m;
  QuantizedPlan plan = BeginPlan(p);
  const bool streams = plan.kernel != QuantizedKernelKind::kAny;
  const int64_t with_rows = std::max<int64_t>(std::min(params.groups.all, p.m), 1);
  const int64_t mean = CeilDiv(p.m, with_rows);
  const int64_t here = std::min(with_rows, params.groups.count);
  plan.fine = true;
  if (PlanGroupsHopper(params, here, mean, device, plan)) return plan;
  plan.shape = streams ? QuantizedShape{mean <= 8 ? 8 : StreamMostRows(p.format, plan.kernel), 2}
                       : QuantizedShape{mean <= 8 ? 8 : 32, mean <= 8 ? 1 : 2};
  // Rows of x are read once for all tiles of a CTA.
  plan.tile_warps = mean <= 2 ? 1 : mean <= 8 ? 2 : 8;
  plan.k_warps = kMostWarps / plan.tile_warps;
  // Where registers have room for one CTA of most warps alone, there is room for more that are
  // smaller.
  if (plan.kernel == QuantizedKernelKind::kStream && plan.k_warps > 1) plan.k_warps /= 2;
  if (here * CeilDiv(p.tiles, plan.cta_tiles()) > 2 * device.sms && plan.k_warps > 1)
    plan.k_warps /= 2;
  // Enough CTAs of few warps, each with its own sums, begin and end one beside the other.
  constexpr int kTeam = 4;
  const int64_t small_ctas = here * CeilDiv<int64_t>(p.tiles, kTeam * plan.shape.tiles);
  if (streams && mean <= 8 && small_ctas > 2 * device.sms)
    plan.tile_warps = kTeam, plan.k_warps = 1;
  const int64_t steps = CeilDiv<int64_t>(p.k, kStageColumns);
  while (plan.k_warps > 1 && plan.k_warps / 2 >= steps) plan.k_warps /= 2;
  const int rows = static_cast<int>(std::min<int64_t>(p.m, plan.shape.rows));
  Shrink(plan, [&] { return streams ? FitStream(p, plan) : Fit(p, rows, plan); });
  return plan;
}

}  // namespace intarsia::matmul
