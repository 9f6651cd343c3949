// Products with weights in 4-bit codes, u4b8, or u4 with points in bytes, by wgmma, or mma.sync for
// few rows:
//   out[row, column] = sum_i x[row, i] w[column, i] + bias[column] + residual[row, column]
//   (matmul/quantized.h)
// for groups of 128 columns and multiples of it.
//
// One thread has the copy engine fetch codes, factors and rows of x, a stage of 128 columns at a
// time. A stage's sums are a group's, or part of one: its scale multiplies them in f32. Its point
// is taken from codes as they become numbers.
//
// More than 16 rows of x: warpgroups decode codes into registers, which are wgmma's A, 64 rows of w
// at a time. B are rows of x as they lie in memory. A lane of A has columns 2c, 2c + 1, 2c + 8 and
// 2c + 9 of 16, of rows r and r + 8, in whose place are rows 2r and 2r + 1 of a tile: byte c of two
// neighboring lines of codes, in 8 bytes of each line. While the tensor cores multiply, integer
// units and those for halves are at less than half of their speed, and f32's products have to wait:
// what counts is how few instructions decode.
//
// Up to 16 rows: mma.sync (codes_block.cuh), since wgmma with A in registers takes as long for 8
// rows as for 16. A multiprocessor has room for several CTAs (WarpgroupsCtas).
//
// With a gating the tiles of a CTA are those of gates, then those of their ups.
//
// Codes in registers, fed by copies ahead of them, are Marlin's design (Frantar et al., 2024), on
// wgmma Machete's.
#pragma once
#include "src/core/cuda/tma.cuh"
#include "src/core/cuda/vec.cuh"
#include "src/core/cuda/wgmma.cuh"
#include "src/matmul/cuda/codes.cuh"
#include "src/matmul/cuda/quantized_plan.h"
#include "src/matmul/cuda/sm90/codes_block.cuh"
#include "src/matmul/cuda/sm90/lane_pairs.cuh"
#include "src/matmul/cuda/sm90/shared.cuh"

namespace intarsia::matmul::sm90 {

template <DType kType_, int kRows_, int kTiles_, int kParts_, bool kPoints_>
struct WarpgroupsConfig {
  static constexpr DType kType = kType_;
  static constexpr bool kPoints = kPoints_;
  static constexpr Format kFormat = kPoints ? Format::kU4 : Format::kU4B8;
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
  static constexpr int kThreads = kMultipliers + (kByWarps ? 32 : cuda::kWarpgroupThreads);
  static constexpr int kCtas = WarpgroupsCtas(kRows, kParts);  // of a multiprocessor
  // The copying warpgroup gives registers to those that multiply, unless kByWarps.
  static constexpr int kAtStart = 65536 / kThreads / 8 * 8, kCopying = 32;
  static constexpr int kMultiplyingRegisters =
      (kAtStart + (kAtStart - kCopying) / kMultiplying) / 8 * 8;
  static constexpr int kXBytes = kRows * kStageColumns * 2;
  static constexpr int kTileBytes = kStageColumns * static_cast<int>(kTileRows) / 2;
  static constexpr int kPointBytes = kPoints ? kTiles * static_cast<int>(kTileRows) : 0;
  static constexpr int kMostScaleBytes = kTiles * static_cast<int>(kTileRows) * 4;
  // Boxes begin at multiples of 128 bytes.
  static constexpr int kFactorBytes = (kMostScaleBytes + kPointBytes + 127) / 128 * 128;
  static constexpr int kStages = WarpgroupsStages({kRows, kTiles}, kParts);
  // A place of the ring is always the same part's: another one could find it a round behind.
  static_assert(kStages % kParts == 0);
  static constexpr int kPitch = kTiles * static_cast<int>(kTileRows) + 4;  // of sums, for the banks
};

template <class S>
struct alignas(cuda::kSwizzleAtomBytes) WarpgroupsShared {
  struct Stage {
    alignas(cuda::kSwizzleAtomBytes) char x[S::kXBytes];
    alignas(cuda::kSwizzleAtomBytes) char codes[S::kTiles][S::kTileBytes];
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
  // Scales one after the other; then points.
  alignas(128) char factors[S::kStages][S::kFactorBytes];
  Ring<S::kStages> ring;
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
  CUtensorMap x, codes, scales, points;  // words of a tile, group, tile, half
};

// By one thread. Boxes end with zeros where x, or w, ends. Weights wait for the kernel before this
// one as x does: it may have computed them, or cut them out of those of all layers.
template <class S>
__device__ __forceinline__ void CopyStages(const QuantizedParams& p, const QuantizedPlan& plan,
                                           const WarpgroupsMaps& maps, const WarpgroupsTask& task,
                                           WarpgroupsShared<S>& shared) {
  const int stages_of_group = static_cast<int>(p.group) / kStageColumns;
  const int tile = static_cast<int>(task.first_tile);
  const bool once = gridDim.y == 1;  // no other rows of x meet these weights
  cuda::AwaitPrevious();
  cuda::LetNextBegin();  // not earlier: the next kernel's CTAs would take the places of this one's
  cuda::RingPlace<S::kStages> place;
  for (int i = task.begin; i < task.end; ++i, place.Next()) {
    auto& full = shared.ring.full[place.index];
    auto& stage = shared.stages[place.index];
    shared.ring.empty[place.index].Wait(place.parity ^ 1);
    full.ArriveExpecting(S::kXBytes + S::kTiles * (S::kTileBytes + plan.scale_bytes) +
                         S::kPointBytes);
    cuda::CopyBox<3>(stage.codes, maps.codes, {i * (S::kTileBytes / 4), tile, 0}, full, once);
    char* const factors = shared.factors[place.index];
    cuda::CopyBox<4>(factors, maps.scales, {0, i / stages_of_group, tile, 0}, full, once);
    if constexpr (S::kPoints)
      cuda::CopyBox<4>(factors + S::kMostScaleBytes, maps.points, {0, i / stages_of_group, tile, 0},
                       full, once);
#pragma unroll
    for (int panel = 0; panel < 2; ++panel)
      cuda::CopyBox<2>(stage.x + panel * (S::kXBytes / 2), maps.x,
                       {i * kStageColumns + panel * cuda::kPanelColumns, task.first_row}, full);
  }
}

// Four warps that compute 64 kEach rows of w, of each part's stages.
template <class S>
class WarpgroupsProduct {
 public:
  static constexpr int kSums = S::kRows / 2;
  static constexpr int kSteps = kStageColumns / cuda::kWgmmaStep;
  using M = cuda::Wgmma<S::kRows>;
  using Steps = CountedSteps<S::kFormat, S::kType>;
  using Block = CodesBlock<S::kFormat, S::kType, S::kRows, S::kEach>;

  // `number`: of the warpgroup.
  __device__ __forceinline__ WarpgroupsProduct(const QuantizedParams& p, const WarpgroupsTask& task,
                                               WarpgroupsShared<S>& shared, int number)
      : p_(p),
        task_(task),
        shared_(shared),
        pairs_(OpaqueZero(p), static_cast<int>(threadIdx.x % 4)),
        block_(OpaqueZero(p)),
        part_(number % S::kParts) {
    const int thread = static_cast<int>(threadIdx.x % cuda::kWarpgroupThreads), lane = thread % 32;
    const int r = lane / 4, c = lane % 4;
    tile_ = number / S::kParts * 4 * S::kEach + thread / 32;
    pair_ = Kept(tile_ * static_cast<int>(kTileRows) / 2 + r);
    const int line = S::kByWarps ? c : 0;
    codes_at_ = Kept(tile_ * S::kTileBytes + line * static_cast<int>(kLineBytes) + 8 * r);
    x_at_ = Kept(r * 128 + (c ^ r) * 16);
  }

  __device__ __forceinline__ void Run() {
#pragma unroll
    for (auto& of_tile : all_)
#pragma unroll
      for (float& sum : of_tile) sum = 0.0f;
    if (p_.scales.dtype == DType::kF16)
      AddStages<DType::kF16>();
    else if (p_.scales.dtype == DType::kBF16)
      AddStages<DType::kBF16>();
    else
      AddStages<DType::kF32>();
  }

  // By all that multiply, when all stages are read.
  __device__ __forceinline__ void WriteSums() const {
    constexpr float kOne = 1.0f / Steps::kUnit;
    const int lane = static_cast<int>(threadIdx.x % 32), r = lane / 4, c = lane % 4;
#pragma unroll
    for (int each = 0; each < S::kEach; ++each)
#pragma unroll
      for (int i = 0; i < kSums; i += 4)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = (tile_ + 4 * each) * static_cast<int>(kTileRows) + 2 * r;
          *reinterpret_cast<float2*>(shared_.sums[part_] + (2 * i + 2 * c + e) * S::kPitch +
                                     column) =
              make_float2(all_[each][i + e] * kOne, all_[each][i + 2 + e] * kOne);
        }
  }

 private:
  template <DType kScale>
  __device__ __forceinline__ void AddStages() {
    float group[S::kEach][kSums];
    cuda::RingPlace<S::kStages> place;
    place.Advance(part_);
#pragma unroll 1
    for (int i = task_.begin + part_; i < task_.end; i += S::kParts) {
      shared_.ring.full[place.index].Wait(place.parity);
      if constexpr (S::kByWarps && S::kPoints) {
        const uint2 biases[] = {BiasesOf(place.index, 0), BiasesOf(place.index, 1)};
        MultiplyByWarps(place.index, group, [&](int each) { return biases[each]; });
      } else if constexpr (S::kByWarps) {
        MultiplyByWarps(place.index, group);
      } else if constexpr (S::kPoints) {
        MultiplyByWarpgroup(place.index, group[0], BiasesOf(place.index, 0));
      } else {
        MultiplyByWarpgroup(place.index, group[0]);
      }
      float2 scales[S::kEach];
#pragma unroll
      for (int each = 0; each < S::kEach; ++each)
        scales[each] = ScalePairOf<kScale>(shared_.factors[place.index],
                                           pair_ + each * 4 * static_cast<int>(kTileRows) / 2);
      if constexpr (!S::kByWarps) cuda::WgmmaWait<0>();
      Release(place.index);
#pragma unroll
      for (int each = 0; each < S::kEach; ++each) AddScaled(scales[each], group[each], all_[each]);
#pragma unroll
      for (int part = 0; part < S::kParts; ++part) place.Next();
    }
  }

  // A warp has a tile. In flight afterwards. biases: none, or of rows 2r and 2r + 1.
  template <class... Biases>
  __device__ __forceinline__ void MultiplyByWarpgroup(int stage, float (&sums)[kSums],
                                                      Biases... biases) const {
    const char* const codes = shared_.stages[stage].codes[0] + codes_at_;
    uint32_t a[kSteps][4];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const auto line = [&](int l) {
        return *reinterpret_cast<const uint2*>(codes + (2 * step + l) * kLineBytes);
      };
      const uint2 low = line(0), high = line(1);
      pairs_.Decode(low.x, high.x, a[step][0], a[step][2], biases.x...);
      pairs_.Decode(low.y, high.y, a[step][1], a[step][3], biases.y...);
    }
    // Decoded before the first product begins, not between products.
#pragma unroll
    for (auto& of_step : a)
#pragma unroll
      for (uint32_t& pair : of_step) asm volatile("" : "+r"(pair)::"memory");
    Multiply(stage, a, sums);
  }
  // Of rows 2r and 2r + 1 of a tile.
  __device__ __forceinline__ uint2 BiasesOf(int stage, int each) const {
    return PointBiases<S::kType>(shared_.factors[stage] + S::kMostScaleBytes,
                                 pair_ + each * 4 * static_cast<int>(kTileRows) / 2);
  }
  // The copy engine swaps 16 bytes of a row of a panel by the row's number.
  template <class... Biases>
  __device__ __forceinline__ void MultiplyByWarps(int stage, float (&sums)[S::kEach][kSums],
                                                  Biases... biases) const {
    const char* const x = shared_.stages[stage].x;
    const char* const codes = shared_.stages[stage].codes[0] + codes_at_;
#pragma unroll
    for (auto& of_tile : sums)
#pragma unroll
      for (float& sum : of_tile) sum = 0.0f;
#pragma unroll
    for (int block = 0; block < kStageColumns / 32; ++block)
      block_.MultiplyAdd(
          [&](int each) { return codes + each * 4 * S::kTileBytes + 4 * block * kLineBytes; },
          [&](int n) {
            return x + block / 2 * (S::kXBytes / 2) + n * 1024 + (x_at_ ^ block % 2 * 64);
          },
          sums, biases...);
  }
  __device__ __forceinline__ void Multiply(int stage, const uint32_t (&a)[kSteps][4],
                                           float (&sums)[kSums]) const {
    const uint64_t x = cuda::ColumnsSummed(cuda::SharedAddress(shared_.stages[stage].x));
    using T = typename S::T;
    cuda::WgmmaFence();
    M::template RegistersColumns<T, false>(sums, a[0], x);
#pragma unroll
    for (int step = 1; step < kSteps; ++step)
      M::template RegistersColumns<T, true>(sums, a[step],
                                            x + cuda::ColumnStepBytes(S::kRows, step) / 16);
    cuda::WgmmaCommit();
  }
  __device__ __forceinline__ void Release(int stage) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) shared_.ring.empty[stage].Arrive();
  }

  const QuantizedParams& p_;
  const WarpgroupsTask& task_;
  WarpgroupsShared<S>& shared_;
  const LanePairs<S::kFormat, S::kType> pairs_;
  const Block block_;
  const int part_;
  int tile_;
  // Of the lane: its pair of rows among those of all tiles, and where a stage has its codes, of the
  // first line, and its x.
  int pair_, codes_at_, x_at_;
  float all_[S::kEach][kSums];
};

}  // namespace intarsia::matmul::sm90
