#include "src/matmul/cuda/choose.h"

#include "src/core/aligned.h"
#include "src/matmul/cuda/sm90/grouped.h"
#include "src/matmul/cuda/sm90/tiles.h"

namespace intarsia::matmul {
namespace {

// Rows of a group that has some, if all have as many; rows may be of groups that are elsewhere.
int64_t MeanRows(const GroupSizes& groups) {
  return CeilDiv(groups.m, std::max<int64_t>(std::min(groups.all, groups.m), 1));
}

bool CanStream(const GroupedParams& p) {
  return Bytes(p.dtype) == 2 && p.k % 8 == 0 && p.n % 8 == 0 && IsAligned16(p.x) &&
         IsAligned16(p.w);
}

// Where wide tiles would reach past the last column, narrow ones read weights 2% faster
// (docs/notebook/grouped.md), as long as a group needs few of them.
bool FitsNarrow(const GroupedParams& p, const cuda::Device&) {
  const int64_t rows = MeanRows(p.groups);
  return p.transposed && p.n > sm90::NarrowShape::kColumns &&
         p.n % sm90::GroupedShape::kColumns != 0 && rows >= 2 && rows <= 16;
}

// With more rows a group, tiles of 64 read weights as fast: eight were measured
// (docs/notebook/grouped.md).
bool FitsStream(const GroupedParams& p, const cuda::Device&) {
  // With gates each row of x is in a group once, as a rule: more rows of x are more than two tiles.
  const bool few_tiles = !p.gating.is_there || p.x_rows <= 2 * kStreamRows;
  return CanStream(p) && few_tiles && MeanRows(p.groups) <= 4;
}

// Whether most of the GPU would wait for the last CTAs of the streaming kernel, of which a
// multiprocessor has two.
bool StreamsUnevenly(const GroupedParams& p, const cuda::Device& device) {
  const int64_t ctas =
      MostTiles(p.m(), p.groups.count, kStreamRows) * CeilDiv<int64_t>(p.n, kStreamColumns);
  const int64_t together = int64_t{2} * device.sms;
  return ctas > together && ctas < together + together / 2;
}

// Streaming is as good for a row or two of a group, and better where tiles are few
// (docs/notebook/grouped.md).
bool FitsWarpgroups(const GroupedParams& p, const cuda::Device& device) {
  if (p.n < 128) return false;
  if (MeanRows(p.groups) > (p.transposed ? 1 : 2)) return true;
  const int64_t tiles = MostTiles(p.m(), p.groups.count, sm90::GroupedShape::kRows) *
                        CeilDiv<int64_t>(p.n, sm90::GroupedShape::kColumns);
  return StreamsUnevenly(p, device) && tiles > device.sms / 2;
}

// Small tiles where large ones would be half empty, or too few for the GPU.
bool FitsLargeTiles(const GroupedParams& p, const cuda::Device& device) {
  const int64_t tiles = CeilDiv<int64_t>(p.m(), 128) * CeilDiv<int64_t>(p.n, TileColumns(p.dtype));
  return Bytes(p.dtype) == 2 && MeanRows(p.groups) > 64 && tiles >= device.sms;
}
bool FitsSmallTiles(const GroupedParams&, const cuda::Device&) { return true; }

constexpr GroupedCandidate kCandidates[] = {
    {"Hopper, narrow tiles", cuda::kHopper, GroupedKernel::kWarpgroups, sm90::NarrowShape::kRows,
     &FitsNarrow},
    {"Hopper", cuda::kHopper, GroupedKernel::kWarpgroups, sm90::GroupedShape::kRows,
     &FitsWarpgroups},
    {"portable, 8 rows streamed past", cuda::kPortable, GroupedKernel::kStream, kStreamRows,
     &FitsStream},
    {"portable, tiles of 128 rows", cuda::kPortable, GroupedKernel::kTiles, 128, &FitsLargeTiles},
    {"portable, tiles of 64 rows", cuda::kPortable, GroupedKernel::kTiles, 64, &FitsSmallTiles}};

bool FitsGradient(const GroupedGradientParams&, const cuda::Device&) { return true; }

constexpr GradientCandidate kGradients[] = {{"Hopper", cuda::kHopper, &FitsGradient},
                                            {"portable", cuda::kPortable, &FitsGradient}};

// The first of the candidates that runs the call and is good at it.
template <class Candidate, class Params>
const Candidate* FirstOf(std::span<const Candidate> candidates, const Params& p,
                         const cuda::Device& device) {
  const auto found = std::ranges::find_if(candidates, [&](const Candidate& candidate) {
    return CanRun(candidate, p, device) && candidate.fits(p, device);
  });
  return found == candidates.end() ? nullptr : &*found;
}

}  // namespace

std::span<const GroupedCandidate> GroupedCandidates() { return kCandidates; }
std::span<const GradientCandidate> GradientCandidates() { return kGradients; }

bool CanRun(const GroupedCandidate& candidate, const GroupedParams& p, const cuda::Device& device) {
  if (!cuda::HasImage(candidate.arch, device)) return false;
  if (candidate.kernel == GroupedKernel::kWarpgroups) {
    const bool is_narrow = candidate.rows == sm90::NarrowShape::kRows;
    return (is_narrow ? p.transposed : !p.gating.is_there) && sm90::Supports(p);
  }
  if (candidate.kernel == GroupedKernel::kStream)
    return CanStream(p) && (!p.gating.is_there || (p.transposed && p.out_dtype == p.dtype));
  if (p.gating.is_there) return false;
  if (candidate.rows == 128 && Bytes(p.dtype) != 2) return false;
  return TileSharedBytes(p.dtype, candidate.rows) + cuda::kReservedSharedBytes <=
         device.shared_bytes_per_block;
}

bool CanRun(const GradientCandidate& candidate, const GroupedGradientParams& p,
            const cuda::Device& device) {
  return cuda::HasImage(candidate.arch, device) &&
         (candidate.arch == cuda::kPortable || sm90::Supports(p));
}

const GroupedCandidate* Choose(const GroupedParams& p, const cuda::Device& device) {
  return FirstOf(GroupedCandidates(), p, device);
}
const GradientCandidate* Choose(const GroupedGradientParams& p, const cuda::Device& device) {
  return FirstOf(GradientCandidates(), p, device);
}

int StreamWarps(const GroupedParams& p, const cuda::Device& device) {
  // The CTAs if all groups have rows, and the warps that keep memory busy.
  const int64_t ctas =
      MostTiles(p.m(), p.groups.count, kStreamRows) * CeilDiv<int64_t>(p.n, kStreamColumns);
  const int64_t wanted = int64_t{device.sms} * 16;
  int warps = 4;
  while (warps < 8 && ctas * warps < wanted) warps *= 2;
  return warps;
}

std::vector<cuda::KernelChoice> ReportGroupedChoices(const cuda::Device& device) {
  std::vector<cuda::KernelChoice> choices;
  constexpr int64_t kGroups = 128, kK = 2048, kN = 1536;
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const int64_t rows : {1, 16, 32, 64, 1024}) {
      GroupedParams p;
      p.dtype = p.out_dtype = dtype;
      p.k = kK, p.n = kN, p.x_rows = kGroups * rows;
      p.groups.count = p.groups.all = kGroups;
      p.groups.m = kGroups * rows;
      const GroupedCandidate* const choice = Choose(p, device);
      choices.push_back({Text("grouped product ", Name(dtype), ", rows of a group: ", rows),
                         choice ? choice->name : "none"});
    }
    GroupedGradientParams p;
    p.dtype = p.out_dtype = dtype;
    p.k = kK, p.n = kN;
    p.groups.count = p.groups.all = p.groups.m = kGroups;
    const GradientCandidate* const choice = Choose(p, device);
    choices.push_back(
        {Text("gradient of grouped products ", Name(dtype)), choice ? choice->name : "none"});
  }
  return choices;
}

}  // namespace intarsia::matmul
