// Which attention kernels each GPU gets; no GPU is needed.
#include "src/attention/cuda/choose.h"

#include <gtest/gtest.h>

#include "tests/core/gpus.h"

namespace intarsia::attention {
namespace {

using cuda::Device;
using cuda::Gpu;
using cuda::kGpus;

constexpr DType kKeyTypes[] = {kF32, kF16, kBF16, kF8E4M3, kF8E5M2};

Params ParamsOf(DType kv, int64_t d, int64_t tokens = 4096, int64_t seqs = 1) {
  Params p;
  p.dtype = p.out_dtype = IsFp8(kv) ? kBF16 : kv;
  p.cache.dtype = kv;
  p.num_tokens = tokens;
  p.num_seqs = seqs;
  p.num_heads = 32;
  p.q_head_stride = d, p.q_token_stride = p.num_heads * d;
  p.paged = true;
  p.cache.num_kv_heads = 8;
  p.cache.num_pages = 256;
  p.cache.page_size = 16;
  p.cache.k_strides = {.layer = 0, .page = 16 * 8 * d, .slot = 8 * d, .head = d};
  p.cache.v_strides = p.cache.k_strides;
  p.head_dim = p.cache.head_dim = p.cache.v_head_dim = d;
  return p;
}

bool HasLargeSharedMemory(const Device& device) { return device.shared_bytes_per_sm > 100 * 1024; }

TEST(Choose, EveryGpuRunsEveryHeadDim) {
  for (const auto& [name, device] : kGpus) {
    for (const DType kv : kKeyTypes) {
      for (int64_t d = 8; d <= 256; d += 8) {
        const Params p = ParamsOf(kv, d);
        const Candidate* const prefill = Choose(PrefillCandidates(), p, device);
        const Candidate* const decode = Choose(DecodeCandidates(), p, device);
        ASSERT_TRUE(prefill && decode) << name << " d=" << d << " " << Name(kv);
        if (!IsFp8(kv)) {
          EXPECT_TRUE(Choose(BackwardCandidates(), p, device)) << name << " d=" << d;
        }
      }
    }
  }
}

TEST(Choose, LargeTilesWhereSharedMemoryIsLarge) {
  for (const auto& [name, device] : kGpus) {
    if (!HasLargeSharedMemory(device)) continue;
    for (const DType kv : kKeyTypes) {
      for (const int64_t d : {64, 96, 128, 192, 256}) {
        const Params p = ParamsOf(kv, d);
        EXPECT_EQ(Choose(PrefillCandidates(), p, device)->tiles, TileSize::kLarge) << name << d;
        EXPECT_EQ(Choose(DecodeCandidates(), p, device)->tiles, TileSize::kLarge) << name << d;
        if (!IsFp8(kv)) {
          EXPECT_EQ(Choose(BackwardCandidates(), p, device)->tiles, TileSize::kLarge) << name;
        }
      }
    }
  }
}

TEST(Choose, SmallTilesForLlamaOnConsumerGpus) {
  const Params p = ParamsOf(kBF16, 128);
  for (const char* name : {"A10", "RTX 3090", "L4", "L40S", "RTX 4090", "RTX 5090"}) {
    EXPECT_EQ(Choose(PrefillCandidates(), p, Gpu(name))->tiles, TileSize::kSmall) << name;
    EXPECT_EQ(Choose(DecodeCandidates(), p, Gpu(name))->tiles, TileSize::kSmall) << name;
    EXPECT_EQ(Choose(BackwardCandidates(), p, Gpu(name))->tiles, TileSize::kSmall) << name;
  }
}

TEST(Choose, LargeTilesForAPromptOfOneWave) {
  // 512 tokens of 4 heads each are 16 tiles of 128 rows, under 8 KV heads: 128 CTAs.
  const Params p = ParamsOf(kBF16, 128, 512);
  EXPECT_EQ(Choose(PrefillCandidates(), p, Gpu("L40S"))->tiles, TileSize::kLarge);
  EXPECT_EQ(Choose(PrefillCandidates(), p, Gpu("L4"))->tiles, TileSize::kSmall);
}

TEST(Choose, TilesFitAsOftenAsTheyAreBuiltFor) {
  for (const TileSize size : {TileSize::kLarge, TileSize::kSmall}) {
    const Device device = Gpu(size == TileSize::kLarge ? "H100" : "L40S");
    const auto expect = [&](int bytes, int ctas, const char* what, int d) {
      EXPECT_GE(cuda::ResidentBlocks(device, bytes), ctas) << what << d;
    };
    for (const DType kv : kKeyTypes) {
      for (const int64_t want : {32, 64, 96, 128, 192, 256}) {
        const int prefill = PrefillDim(kv, want), decode = DecodeDims::Covering(want);
        const PrefillTiles p = PrefillTilesOf(kv, prefill, size);
        expect(PrefillSharedBytes(kv, prefill, p) + kForwardStaticBytes, p.ctas_per_sm, "prefill ",
               prefill);
        const DecodeTiles d = DecodeTilesOf(kv, decode, size);
        expect(DecodeSharedBytes(kv, decode, d) + kForwardStaticBytes, d.ctas_per_sm, "decode ",
               decode);
        if (IsFp8(kv)) continue;
        const int backward = BackwardDims::Covering(want);
        const BackwardTiles b = BackwardTilesOf(kv, backward, size);
        if (size == TileSize::kSmall && b == BackwardTilesOf(kv, backward, TileSize::kLarge))
          continue;  // a large one that fits, if not as often
        expect(BackwardSharedBytes(kv, backward, b) + kBackwardStaticBytes, b.ctas_per_sm,
               "gradient ", backward);
      }
    }
  }
}

TEST(Choose, FollowsTheShapeOfTheBatch) {
  const auto choose = [](int64_t tokens, int64_t seqs) {
    ForwardChoice choice;
    EXPECT_TRUE(ChooseForward(ParamsOf(kBF16, 128, tokens, seqs), Gpu("H200"), choice).ok());
    return choice;
  };
  const ForwardChoice prefill = choose(4096, 1), decode = choose(64, 64), mixed = choose(4096, 9);
  EXPECT_TRUE(prefill.prefill && !prefill.decode);
  EXPECT_TRUE(!decode.prefill && decode.decode);
  EXPECT_TRUE(mixed.prefill && mixed.decode);
}

TEST(Choose, ReportsWhatALongPromptGets) {
  const auto kernel = [](const char* gpu, std::string_view call) {
    for (const cuda::KernelChoice& choice : ReportChoices(Gpu(gpu)))
      if (choice.call == call) return choice.kernel;
    return std::string("not reported");
  };
  EXPECT_EQ(kernel("L40S", "prefill bf16 d=128"), "portable, small tiles");
  EXPECT_EQ(kernel("L40S", "prefill bf16 d=64"), "portable, large tiles");
  EXPECT_EQ(kernel("H200", "prefill bf16 d=128"), "Hopper");
  EXPECT_EQ(kernel("H200", "prefill f8e4m3fn d=128"), "Hopper");
  EXPECT_EQ(kernel("B200", "prefill bf16 d=128"), "portable, large tiles");
  EXPECT_EQ(kernel("RTX 4090", "decode f8e4m3fn d=128"), "portable, small tiles");
}

TEST(Choose, HopperGetsItsOwnPrefill) {
  const auto name = [](const Params& p, const Device& device = Gpu("H100")) {
    return std::string_view(Choose(PrefillCandidates(), p, device)->name);
  };
  constexpr std::string_view kPortableName = "portable, large tiles";
  for (const DType type : {kBF16, kF16}) {
    for (int64_t d = 8; d <= 256; d += 8) EXPECT_EQ(name(ParamsOf(type, d)), "Hopper") << d;
    EXPECT_EQ(name(ParamsOf(type, 128), cuda::HeldBack(Gpu("H100"), 80)), kPortableName);
  }
  EXPECT_EQ(name(ParamsOf(kF32, 128)), kPortableName);
  for (const DType type : {kF8E4M3, kF8E5M2}) {  // beside q of 16 bits
    for (int64_t d = 16; d <= 256; d += 16) EXPECT_EQ(name(ParamsOf(type, d)), "Hopper") << d;
    EXPECT_EQ(name(ParamsOf(type, 72)), kPortableName);  // rows of whole units of 16 bytes
    Params of_f32 = ParamsOf(type, 128);
    of_f32.dtype = of_f32.out_dtype = kF32;
    EXPECT_EQ(name(of_f32), kPortableName);
  }
  Params codes = ParamsOf(kF8E4M3, 128);  // with q in e4m3, too, as far as f32 sums have room
  codes.dtype = kF8E4M3;
  EXPECT_EQ(name(codes), "Hopper");
  codes.head_dim = codes.cache.v_head_dim = 192;
  EXPECT_EQ(name(codes), kPortableName);
  codes = ParamsOf(kF8E5M2, 128);
  codes.dtype = kF8E5M2;
  EXPECT_EQ(name(codes), kPortableName);
  // What its copies cannot do: pages that are no multiple of 4, rows that do not begin at multiples
  // of 16 bytes.
  Params p = ParamsOf(kBF16, 128);
  p.cache.page_size = 6;
  EXPECT_EQ(name(p), kPortableName);
  p.cache.page_size = 4;
  EXPECT_EQ(name(p), "Hopper");
  p.attention_chunk = 64;  // which its softmax does not have
  EXPECT_EQ(name(p), kPortableName);
  p.attention_chunk = 0;
  p.q_token_stride += 4;
  EXPECT_EQ(name(p), kPortableName);
}

// A kernel for Hopper alone that wants more workspace than the portable one.
constexpr int64_t kWanted = 1 << 20;
const Candidate kWithHopper[] = {
    {"sm90", cuda::kHopper, TileSize::kLarge, [](const Params&, const Device&) { return true; },
     [](const Params&) { return kWanted; }},
    PrefillCandidates()[1],
    PrefillCandidates()[2]};

TEST(Choose, TakesAKernelOfItsArchitectureAlone) {
  Params p = ParamsOf(kBF16, 128);
  float workspace = 0;
  p.workspace = &workspace;
  p.max_splits = 2, p.workspace_floats = kWanted / 2;
  for (const auto& [name, device] : kGpus)
    EXPECT_EQ(Choose(kWithHopper, p, device)->arch,
              device.arch == 90 ? cuda::kHopper : cuda::kPortable)
        << name;
}

TEST(Choose, ARecordedWorkspaceThatIsTooSmallKeepsTheKernelItWasRecordedFor) {
  Params p = ParamsOf(kBF16, 128);
  float workspace = 0;
  p.workspace = &workspace;
  p.max_splits = 2, p.workspace_floats = kWanted / 2 - 1;
  EXPECT_EQ(Choose(kWithHopper, p, Gpu("H200"))->arch, cuda::kPortable);
  p.workspace = nullptr;
  EXPECT_EQ(Choose(kWithHopper, p, Gpu("H200"))->arch, cuda::kPortable);
}

}  // namespace
}  // namespace intarsia::attention
