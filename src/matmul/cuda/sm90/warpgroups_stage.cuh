// The stages of warpgroups.cuh: what a CTA has of them in shared memory, and how they come there.
#pragma once
#include "src/core/cuda/tma.cuh"
#include "src/core/cuda/vec.cuh"
#include "src/core/cuda/wgmma.cuh"
#include "src/matmul/cuda/quantized_plan.h"
#include "src/matmul/cuda/sm90/codes_boxes.cuh"
#include "src/matmul/cuda/sm90/shared.cuh"

namespace intarsia::matmul::sm90 {

// kEnds: of groups. kEach16 is 6 bits, and nvfp4.
template <DType kType_, Format kFormat_, GroupEnds kEnds, int kRows_, int kTiles_, int kParts_ = 1>
struct WarpgroupsConfig {
  static constexpr DType kType = kType_;
  static constexpr Format kFormat = kFormat_;
  static constexpr bool kWide = kEnds == GroupEnds::kEach128;
  static constexpr bool kOfSteps = kEnds == GroupEnds::kEach16;
  static constexpr int kBits = static_cast<int>(BitsOf(kFormat));
  static constexpr bool kZeros = kFormat == Format::kU4 || kFormat == Format::kU5;
  static constexpr bool kPoints = kZeros && kWide, kMinimums = kZeros && !kWide;
  static constexpr bool kScalesCodes = kFormat == Format::kE2M1;
  static_assert((!kWide || !kScalesCodes) && (kScalesCodes || kOfSteps == (kBits == 6)));
  static constexpr bool kIsNvFp4 = kScalesCodes && kOfSteps;  // nvfp4
  using T = cuda::DeviceT<kType>;
  static constexpr int kRows = kRows_;  // of x
  // Whether warps multiply by mma.sync.
  static constexpr bool kByWarps = kRows <= kMostRowsByWarps;
  // Warpgroups that take stages in turn, and add up their sums at the end.
  static constexpr int kParts = kParts_;
  // Tiles of a warp: two share what is read of x, where it is read by lanes.
  static constexpr int kEach = kByWarps ? 2 : 1;
  static constexpr int kTiles = kTiles_;
  static constexpr int kMultiplying = kParts * kTiles / (4 * kEach);  // warpgroups
  static constexpr int kMultipliers = kMultiplying * cuda::kWarpgroupThreads;
  // Whether the copying warpgroup's other warps sum up rows of x (x_sums.cuh).
  static constexpr bool kSumsX = kMinimums && !kByWarps;
  static constexpr int kThreads = kMultipliers + (kByWarps ? 32 : cuda::kWarpgroupThreads);
  static constexpr int kCtas = WarpgroupsCtas(kRows, kParts, kFormat);  // of a multiprocessor
  // Whether factors may be GGUF's: in f16, or in bytes times outer ones in f16; and whether they
  // are no others.
  static constexpr bool kMayHaveOuters = kMinimums || kBits == 5 || kBits == 6;
  static constexpr bool kGgufFactors =
      kMayHaveOuters && (kByWarps || kBits > 4 || kTiles > kNarrowTiles);
  // The copying warpgroup gives registers to those that multiply, unless kByWarps. It keeps some
  // for the warps that sum x, but not with 64 rows and kNarrowTiles, where decoding needs them.
  static constexpr int kSummingRegisters =
      kSumsX && (kRows == 32 || kTiles > kNarrowTiles) ? 56 : 0;
  static constexpr int kCopying = kSummingRegisters   ? kSummingRegisters
                                  : kMultiplying == 3 ? 40
                                                      : 32;
  // Steps of 16 columns whose codes are decoded at a time, where blocks are scaled: what registers
  // have room for.
  static constexpr int kDecoded = kSummingRegisters && kRows == 64 ? 2 : 4;
  static constexpr int kMultiplyingRegisters = RegistersOfConsumers(kMultiplying, kCopying);
  static constexpr int kXBytes = kRows * kStageColumns * 2;
  // A panel behind those of x, for the sums.
  static constexpr int kXSumsBytes = kSumsX ? kRows * cuda::kPanelRowBytes : 0;
  static constexpr int kBoxes = TileBoxes(kFormat), kBoxBytes = TileBoxBytes(kFormat);
  static constexpr int kColumns = kTiles * static_cast<int>(kTileRows);  // of w
  static constexpr int kMostScaleBytes = kColumns * (kWide || (kScalesCodes && !kOfSteps) ? 4
                                                     : kGgufFactors || kOfSteps           ? 8
                                                                                          : 16);
  static constexpr int kMostZeroBytes = kPoints ? kColumns : kMinimums ? kMostScaleBytes : 0;
  // Where factors begin, at multiples of 128 bytes as boxes do.
  static constexpr int kZerosAt = kMostScaleBytes;
  static constexpr int kOuterScalesAt = (kMostScaleBytes + kMostZeroBytes + 127) / 128 * 128;
  static constexpr int kOuterZerosAt = kOuterScalesAt + (kMayHaveOuters ? kTiles * kOuterBytes : 0);
  static constexpr int kFactorBytes = kOuterZerosAt + (kMinimums ? kTiles * kOuterBytes : 0);
  // Stages in flight, as many as there is room for. A place of the ring is always the same part's:
  // another one could find it a round behind.
  static constexpr int kStageBytes =
      RoundUp<int>(kXBytes + kXSumsBytes, cuda::kSwizzleAtomBytes) +
      RoundUp<int>(kTiles * kBoxes * kBoxBytes, cuda::kSwizzleAtomBytes) +
      RoundUp<int>(kFactorBytes, 128) + 3 * static_cast<int>(sizeof(cuda::Barrier));
  static constexpr int kRoom =
      cuda::SharedKilobytes(cuda::kHopper) * 1024 / kCtas - cuda::kReservedSharedBytes;
  static constexpr int kStages = kRoom / kStageBytes / kParts * kParts;
  static constexpr int kPitch = kTiles * static_cast<int>(kTileRows) + 4;  // of sums, for the banks
};

template <class S>
struct alignas(cuda::kSwizzleAtomBytes) WarpgroupsShared {
  struct Stage {
    alignas(cuda::kSwizzleAtomBytes) char x[S::kXBytes + S::kXSumsBytes];
    alignas(cuda::kSwizzleAtomBytes) char codes[S::kBoxes][S::kTiles][S::kBoxBytes];
  };
  union {
    Stage stages[S::kStages];
    float sums[S::kParts][S::kRows * S::kPitch];  // when all stages are read
  };
  // Four of them, at a multiple of 4.
  __device__ __forceinline__ float4* Sums(int part, int at) {
    return reinterpret_cast<float4*>(sums[part] + at);
  }
  __device__ __forceinline__ const float4* Sums(int part, int at) const {
    return reinterpret_cast<const float4*>(sums[part] + at);
  }
  // Scales one after the other; then points, or minimums; then outer factors of both.
  alignas(128) char factors[S::kStages][S::kFactorBytes];
  Ring<S::kStages> ring;
  cuda::Barrier summed[S::kSumsX ? S::kStages : 1];
};

// What a CTA computes: stages [begin, end) of the sum, for tiles from first_tile on.
struct WarpgroupsTask {
  int64_t first_tile;
  int tiles, first_row, begin, end;
};

// The tiles that CTAs have one after the other: those of w, or, with a gating, of gates beside
// those of their ups.
template <class S>
struct WarpgroupsHalves {
  INTARSIA_HOST_DEVICE explicit WarpgroupsHalves(const QuantizedParams& p)
      : count(p.gating.is_there ? 2 : 1), cta_tiles(S::kTiles / count), tiles(p.tiles / count) {}
  int count, cta_tiles;
  int64_t tiles;
};

struct WarpgroupsMaps {
  CUtensorMap x, codes, scales, zeros, outer_scales,
      outer_zeros;  // words of a tile, group, tile, half
};

// By one thread. Boxes end with zeros where x, or w, ends. Weights wait for the kernel before this
// one as x does: it may have computed them, or cut them out of those of all layers.
template <class S>
__device__ __forceinline__ void CopyStages(const QuantizedParams& p, const QuantizedPlan& plan,
                                           const WarpgroupsMaps& maps, const WarpgroupsTask& task,
                                           WarpgroupsShared<S>& shared) {
  const int tile = static_cast<int>(task.first_tile);
  const bool once = gridDim.y == 1;  // no other rows of x meet these weights
  cuda::AwaitPrevious();
  cuda::LetNextBegin();  // not earlier: the next kernel's CTAs would take the places of this one's
  cuda::RingPlace<S::kStages> place;
  const bool has_outers = S::kMayHaveOuters && p.scales.outer;
  const auto outer_columns =
      static_cast<int>(has_outers ? p.group * (p.groups / p.scales.outers) : 1);
  const int of_groups = plan.stage_groups * (plan.scale_bytes + plan.zero_bytes) +
                        (has_outers ? kOuterBytes * (S::kMinimums ? 2 : 1) : 0);
  for (int i = task.begin; i < task.end; ++i, place.Next()) {
    auto& full = shared.ring.full[place.index];
    auto& stage = shared.stages[place.index];
    shared.ring.empty[place.index].Wait(place.parity ^ 1);
    full.ArriveExpecting(S::kXBytes + S::kTiles * (S::kBoxes * S::kBoxBytes + of_groups));
#pragma unroll
    for (int box = 0; box < S::kBoxes; ++box)
      cuda::CopyBox<3>(stage.codes[box], maps.codes,
                       {(i * S::kBoxes + box) * (S::kBoxBytes / 4), tile, 0}, full, once);
    char* const factors = shared.factors[place.index];
    const int group = i * kStageColumns / static_cast<int>(p.group);
    cuda::CopyBox<4>(factors, maps.scales, {0, group, tile, 0}, full, once);
    if constexpr (S::kZeros)
      cuda::CopyBox<4>(factors + S::kZerosAt, maps.zeros, {0, group, tile, 0}, full, once);
    if constexpr (S::kMayHaveOuters) {
      if (has_outers) {
        const int outer = i * kStageColumns / outer_columns;
        cuda::CopyBox<4>(factors + S::kOuterScalesAt, maps.outer_scales, {0, outer, tile, 0}, full,
                         once);
        if constexpr (S::kMinimums)
          cuda::CopyBox<4>(factors + S::kOuterZerosAt, maps.outer_zeros, {0, outer, tile, 0}, full,
                           once);
      }
    }
#pragma unroll
    for (int panel = 0; panel < 2; ++panel)
      cuda::CopyBox<2>(stage.x + panel * (S::kXBytes / 2), maps.x,
                       {i * kStageColumns + panel * cuda::kPanelColumns, task.first_row}, full);
  }
}

}  // namespace intarsia::matmul::sm90
