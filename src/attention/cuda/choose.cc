#include "src/attention/cuda/choose.h"

#include <algorithm>

#include "src/attention/cuda/sm90/prefill.h"
#include "src/attention/workspace.h"
#include "src/core/round.h"

namespace intarsia::attention {
namespace {

// The type whose kernels take K and V: f32 queries have theirs read fp8, too.
DType KeyType(const Params& p) { return p.dtype == kF32 ? kF32 : p.cache.dtype; }

int64_t LargerHeadDim(const Params& p) { return std::max(p.head_dim, p.cache.v_head_dim); }

// Large tiles are worth having with as many CTAs as they are built for, since one alone leaves the
// tensor cores idle at each of its barriers; or where a call has no more CTAs than multiprocessors.
template <TileSize kSize>
bool FitsPrefill(const Params& p, const cuda::Device& device) {
  const DType type = KeyType(p);
  const int d = PrefillDim(type, LargerHeadDim(p));
  if (d == 0) return false;
  const PrefillTiles tiles = PrefillTilesOf(type, d, kSize);
  const int bytes = PrefillSharedBytes(type, d, tiles) + kForwardStaticBytes;
  const int resident = cuda::ResidentBlocks(device, bytes);
  const int64_t group = p.num_heads / std::max<int64_t>(p.num_kv_heads(), 1);
  const int64_t ctas = CeilDiv<int64_t>(p.num_tokens * group, tiles.rows()) * p.num_kv_heads();
  return resident >= (ctas <= device.sms ? 1 : tiles.ctas_per_sm);
}
// Bytes of K and V in flight on a multiprocessor, which bound decode; 0 if the tiles do not fit.
int DecodeBytesInFlight(DType type, int d, TileSize size, const cuda::Device& device) {
  const DecodeTiles tiles = DecodeTilesOf(type, d, size);
  const int bytes = DecodeSharedBytes(type, d, tiles);
  const int resident =
      std::min(cuda::ResidentBlocks(device, bytes + kForwardStaticBytes), tiles.ctas_per_sm);
  return resident * (bytes - DecodeQueryBytes(type, d));
}
// Large tiles where they keep more in flight than the two CTAs with small ones.
template <TileSize kSize>
bool FitsDecode(const Params& p, const cuda::Device& device) {
  const DType type = KeyType(p);
  const int d = DecodeDims::Covering(LargerHeadDim(p));
  if (d == 0) return false;
  const int small = DecodeBytesInFlight(type, d, TileSize::kSmall, device);
  if (kSize == TileSize::kSmall) return small > 0;
  return DecodeBytesInFlight(type, d, TileSize::kLarge, device) > small;
}
// Large tiles wherever they fit.
template <TileSize kSize>
bool FitsBackward(const Params& p, const cuda::Device& device) {
  const int d = BackwardDims::Covering(p.head_dim);
  const int bytes = BackwardSharedBytes(p.dtype, d, BackwardTilesOf(p.dtype, d, kSize));
  return d > 0 && bytes + kBackwardStaticBytes <= device.shared_bytes_per_block;
}

// The portable kernels check themselves what they need of a workspace, which may be of any length.
int64_t NoFloats(const Params&) { return 0; }

constexpr auto kLarge = TileSize::kLarge, kSmall = TileSize::kSmall;
constexpr const char *kLargeName = "portable, large tiles", *kSmallName = "portable, small tiles";
constexpr Candidate kPrefill[] = {
    {"Hopper", cuda::kHopper, kLarge,
     [](const Params& p, const cuda::Device&) { return sm90::Supports(p); }, &NoFloats},
    {kLargeName, cuda::kPortable, kLarge, &FitsPrefill<kLarge>, &NoFloats},
    {kSmallName, cuda::kPortable, kSmall, &FitsPrefill<kSmall>, &NoFloats}};
constexpr Candidate kDecode[] = {
    {kLargeName, cuda::kPortable, kLarge, &FitsDecode<kLarge>, &NoFloats},
    {kSmallName, cuda::kPortable, kSmall, &FitsDecode<kSmall>, &NoFloats}};
constexpr Candidate kBackward[] = {
    {kLargeName, cuda::kPortable, kLarge, &FitsBackward<kLarge>, &NoFloats},
    {kSmallName, cuda::kPortable, kSmall, &FitsBackward<kSmall>, &NoFloats}};

Status ChooseOrExplain(std::string_view what, std::span<const Candidate> candidates,
                       const Params& params, const cuda::Device& device, const Candidate*& choice) {
  choice = Choose(candidates, params, device);
  if (choice) return {};
  return Unimplemented(Text("no ", what, " kernel is built for d=", LargerHeadDim(params), " in ",
                            Name(KeyType(params)), " on GPU ", device.index, ", which has ",
                            device.shared_bytes_per_block, " bytes of shared memory per block"));
}

}  // namespace

std::span<const Candidate> PrefillCandidates() { return kPrefill; }
std::span<const Candidate> DecodeCandidates() { return kDecode; }
std::span<const Candidate> BackwardCandidates() { return kBackward; }

const Candidate* Choose(std::span<const Candidate> candidates, const Params& params,
                        const cuda::Device& device) {
  const int64_t floats = params.workspace ? params.max_splits * params.workspace_floats : 0;
  const auto found = std::ranges::find_if(candidates, [&](const Candidate& candidate) {
    return cuda::HasImage(candidate.arch, device) && candidate.workspace_floats(params) <= floats &&
           candidate.fits(params, device);
  });
  return found == candidates.end() ? nullptr : &*found;
}

Status ChooseForward(const Params& params, const cuda::Device& device, ForwardChoice& choice) {
  const bool only_short = OnlyShort(params);
  const bool only_long = !only_short && params.num_seqs == 1;
  if (!only_short)
    INTARSIA_RETURN_IF_ERROR(ChooseOrExplain("prefill", kPrefill, params, device, choice.prefill));
  if (only_long) return {};
  return ChooseOrExplain("decode", kDecode, params, device, choice.decode);
}

Status ChooseBackward(const BackwardParams& params, const cuda::Device& device,
                      const Candidate*& choice) {
  return ChooseOrExplain("gradient", kBackward, params.forward, device, choice);
}

namespace {

// A long prompt, with the workspace that it would have.
Params LongCall(DType kv, int64_t d) {
  static float workspace = 0;  // only its address counts
  Params p;
  p.dtype = p.out_dtype = IsFp8(kv) ? kBF16 : kv;
  p.cache.dtype = kv;
  p.head_dim = p.cache.v_head_dim = d;
  p.num_tokens = p.max_len_k = 1 << 16;
  p.num_seqs = 1;
  p.num_heads = 32;
  p.q_head_stride = d, p.q_token_stride = p.num_heads * d;
  p.paged = true;
  p.cache.num_kv_heads = 8;
  p.cache.page_size = 16;
  p.cache.num_pages = p.max_len_k / p.cache.page_size;
  p.cache.k_strides.head = d;
  p.cache.k_strides.slot = p.cache.num_kv_heads * d;
  p.cache.k_strides.page = p.cache.page_size * p.cache.k_strides.slot;
  p.cache.v_strides = p.cache.k_strides;
  p.workspace = &workspace;
  const auto [splits, floats] = WorkspaceDims(p);
  p.max_splits = splits;
  p.workspace_floats = floats;
  return p;
}

}  // namespace

std::vector<cuda::KernelChoice> ReportChoices(const cuda::Device& device) {
  struct Part {
    const char* name;
    std::span<const Candidate> candidates;
    bool takes_fp8;
  };
  const Part parts[] = {
      {"prefill", kPrefill, true}, {"decode", kDecode, true}, {"gradient", kBackward, false}};
  std::vector<cuda::KernelChoice> choices;
  for (const Part& part : parts) {
    for (const DType kv : {kBF16, kF8E4M3, kF32}) {
      if (IsFp8(kv) && !part.takes_fp8) continue;
      for (const int64_t d : {64, 96, 128, 192, 256}) {
        const Candidate* const choice = Choose(part.candidates, LongCall(kv, d), device);
        choices.push_back(
            {Text(part.name, " ", Name(kv), " d=", d), choice ? choice->name : "none"});
      }
    }
  }
  return choices;
}

}  // namespace intarsia::attention
